// Browsers start no workers for pages that are opened as files: a hidden frame runs the search
// there. The name of this file tells the theme's plugin `offline` that it need not fetch one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.started = new Promise((resolve) => {
        frame.onload = () => {
          this.inside = frame.contentWindow
          this.inside.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }))
          const script = this.inside.document.createElement("script")
          script.src = url
          script.onload = resolve
          this.inside.document.body.append(script)
        }
      })
      frame.srcdoc = "<body></body>"
      document.body.append(frame)
    }

    async postMessage(data) {
      await this.started
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }
}
