// The camera, where the browser has one and the page may use it (https, or this machine).
function offerCamera(take) {
  const open = document.getElementById("camera"), dialog = document.getElementById("camera-dialog");
  const video = dialog.querySelector("video"), shoot = document.getElementById("shoot");
  if (!navigator.mediaDevices?.getUserMedia) return;
  open.hidden = false;
  let stream, count = 0;

  open.addEventListener("click", async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      const reason = { NotAllowedError: "the browser does not allow it: allow the camera for this page",
        NotFoundError: "no camera is connected", NotReadableError: "another program uses it" }[error.name] ?? error.message;
      app.say(`The camera cannot be used: ${reason}.`);
      return;
    }
    video.srcObject = stream;
    shoot.disabled = true;
    dialog.showModal();
    await video.play();
    shoot.disabled = false;
    shoot.focus();
  });
  shoot.addEventListener("click", async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/png" });
    dialog.close();
    take(new File([blob], `photo ${++count}.png`, { type: blob.type }));
  });
  dialog.addEventListener("close", () => {
    stream?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
    open.focus();
  });
}
