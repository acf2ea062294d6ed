// How a program calls the service, with the address of this page, to copy.
(() => {
  const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const model = new URLSearchParams(location.search).get("model");
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  document.getElementById("snippet-curl").textContent =
    `curl --data-binary @image.jpg -H 'Content-Type: image/jpeg' '${base}/v1/predict${query.replaceAll("'", "%27")}'`;
  document.getElementById("snippet-python").textContent = [
    "import vitreous", "", `client = vitreous.Client(${JSON.stringify(base)}${model ? `, model=${JSON.stringify(model)}` : ""})`,
    'prediction = client.predict("image.jpg")', "print(prediction.label, prediction.probability)",
  ].join("\n");
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
