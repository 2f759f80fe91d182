// What the theme leaves out for readers without a mouse: wide tables scroll by the keyboard, and
// its hidden switches of colours are passed over.
const complete = () => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((table) => {
    table.tabIndex = 0;
  });
  document.querySelectorAll("input[aria-hidden=true]:not([tabindex])").forEach((input) => {
    input.tabIndex = -1;
  });
};
complete();
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
