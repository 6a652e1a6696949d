// Files larger than the server accepts are not sent, and a message says why.
() => {
  const guard = (event) => {
    const notice = document.querySelector("#too-large");
    const limit = Number(notice.dataset.bytes);
    const files = [...(event.target.files ?? event.dataTransfer?.files ?? [])];
    const large = files.find((file) => file.size > limit);
    notice.textContent = large ? `${large.name} has ${Math.ceil(large.size / 1e6)} MB; the maximum is ${limit / 1e6} MB.` : "";
    if (large) {
      event.stopImmediatePropagation();
      event.preventDefault();
    }
  };
  for (const kind of ["change", "drop"]) document.addEventListener(kind, guard, true);
}
