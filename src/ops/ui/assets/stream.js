// The one stream of this browser. A browser opens six connections to a host, so all tabs share a worker; where there are no shared
// workers, each page has a stream of its own.

import { merge } from './store.js';

const pages = new Set();
let rows = {};
let last = null; // of the kinds below
let hello = null;
let at = 0;

function post(message) {
  for (const page of pages) page(message);
}

function open() {
  const source = new EventSource('api/stream');
  const on = (name, then) => source.addEventListener(name, (event) => then(JSON.parse(event.data)));
  const status = (message) => post((last = message));
  on('hello', (data) => {
    hello = data;
    status({ kind: 'live', hello, at: data.at });
  });
  on('snapshot', (data) => {
    ({ rows, at } = data);
    post({ kind: 'snapshot', rows, at });
  });
  on('delta', (data) => {
    at = data.at;
    merge(rows, data.rows);
    post({ kind: 'delta', rows: data.rows, at });
  });
  on('ping', (data) => {
    at = data.at;
    post({ kind: 'live', hello, at });
  });
  on('gone', (data) => status({ kind: 'gone', why: data.why }));
  source.onerror = () => {
    if (last?.kind !== 'gone') status({ kind: 'gone', why: 'the connection to `baton ui` is broken' });
    if (source.readyState !== EventSource.CLOSED) return;
    status({ kind: 'gone', why: '`baton ui` does not answer this page: open the URL that it printed last' });
    setTimeout(open, 5000);
  };
}

/** `page` is called with each message from now on, the state first. Returns what ends that. */
export function join(page) {
  if (last) page(last);
  if (hello) page({ kind: 'snapshot', rows, at });
  if (last?.kind === 'gone') page(last);
  pages.add(page);
  if (pages.size === 1 && !last) open();
  return () => pages.delete(page);
}

if (typeof SharedWorkerGlobalScope !== 'undefined') {
  self.onconnect = ({ ports: [port] }) => {
    const leave = join((message) => port.postMessage(message));
    port.onmessage = leave;
  };
}
