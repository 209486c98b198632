(function () {
  var shown = document.body.dataset.stage, misses = 0;
  if (document.body.dataset.moves !== "yes") return;
  function look() {
    fetch("stage", { cache: "no-store" })
      .then(function (answer) { return answer.json(); })
      .then(function (now) {
        misses = 0;
        if (now.stage !== shown) location.reload(); else setTimeout(look, 1000);
      })
      .catch(function () {
        misses += 1;
        if (misses < 3) { setTimeout(look, 1000); return; }
        var gone = document.getElementById("gone");
        if (gone) gone.hidden = false;
      });
  }
  setTimeout(look, 1000);
})();
