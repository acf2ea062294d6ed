// How a program calls the service, with the address of this page, to copy.
const base = new URL(".", document.baseURI).href.replace(/\/$/, "");

// Writes the Python code; `several` says whether the model gives an image several labels, which is known late.
function showPython(several) {
  const model = new URLSearchParams(location.search).get("model");
  document.getElementById("snippet-python").textContent = [
    "import vitreous", "", `client = vitreous.Client(${JSON.stringify(base)}${model ? `, model=${JSON.stringify(model)}` : ""})`,
    'prediction = client.predict("image.jpg")',
    several ? "print(prediction.labels)" : "print(prediction.label, prediction.probability)",
  ].join("\n");
}

(() => {
  const model = new URLSearchParams(location.search).get("model");
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  document.getElementById("snippet-curl").textContent =
    `curl --data-binary @image.jpg -H 'Content-Type: image/jpeg' '${base}/v1/predict${query.replaceAll("'", "%27")}'`;
  showPython(false);
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
        app.say("Copied.");
      } catch { // without https there is no clipboard: select, so that a key press copies
        getSelection().selectAllChildren(code);
        app.say("Selected: press Ctrl+C to copy.");
      }
    });
  }
})();
