/* Search runs in a worker, and browsers start none for a page opened from disk. There it runs in a hidden frame instead,
   which looks to it like a worker and to the page like one too. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = this.inside.document.createElement("script");
          script.src = address;
          script.onload = resolve;
          script.onerror = () => reject(new Error(`cannot load ${address}`));
          this.inside.document.head.append(script);
        });
      this.inside.importScripts = async (...addresses) => {
        for (const address of addresses) await load(new URL(address, url));
      };
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
