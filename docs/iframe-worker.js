/* A page that is opened from disk may start no worker. There, a hidden frame does what the search's worker would do. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "Search";
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      const start = "<script>self.postMessage = (said) => self.answer(said)<\/script>";
      this.frame.srcdoc = `<!doctype html>${start}<script src="${url}"><\/script>`;
      document.documentElement.append(this.frame);
    }
    async postMessage(data) {
      await this.ready;
      const inside = this.frame.contentWindow;
      inside.answer = (said) => this.dispatchEvent(new MessageEvent("message", { data: said }));
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
