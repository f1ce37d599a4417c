// Explains a word of the glossary once on a page: where the word first appears in the text. On a phone, a tap explains it.
document.addEventListener("DOMContentLoaded", () => {
  const explained = new Set();
  for (const word of document.querySelectorAll(".md-content abbr")) {
    if (explained.has(word.title) || word.closest("h1, h2, h3, a, summary")) {
      word.replaceWith(...word.childNodes);
    } else {
      explained.add(word.title);
      word.tabIndex = 0;
    }
  }
});
