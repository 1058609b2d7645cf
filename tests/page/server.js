// What stands between the browser and foretype in these tests: passes everything on, and can be told to delay, refuse or be gone.
import http from "node:http";

export class Between {
  /** Milliseconds that the server's answer to the nth `POST` is held back. */
  delay = () => 0;
  /** An answer instead of the server's: {status, headers, body}. */
  instead = null;
  posts = [];

  constructor(target) {
    this.target = new URL(target);
  }

  async listen(port = 0) {
    this.server = http.createServer((request, response) => this.#pass(request, response));
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.port = this.server.address().port;
    this.url = `http://127.0.0.1:${this.port}/`;
    return this;
  }

  async close() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections();
    await closed;
  }

  async #pass(request, response) {
    const chunks = [];
    let ms = 0;
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    if (request.method === "POST") {
      this.posts.push(JSON.parse(body));
      ms = this.delay(this.posts.length - 1);
      if (this.instead) {
        response.writeHead(this.instead.status, this.instead.headers);
        response.end(this.instead.body);
        return;
      }
    }
    const { hostname, port } = this.target;
    const options = { hostname, port, path: request.url, method: request.method, headers: request.headers };
    const onward = http.request(options, (answer) => {
      setTimeout(() => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      }, ms);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    onward.end(body);
  }
}
