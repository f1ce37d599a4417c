// What scrolls inside itself can be reached and scrolled with the keyboard, too; its room changes with the window's.
const reach = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
};
window.addEventListener("load", reach);
window.addEventListener("resize", reach);
