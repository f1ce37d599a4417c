// Tables that scroll inside themselves can be reached and scrolled with the keyboard, too.
window.addEventListener("load", () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
  }
});
