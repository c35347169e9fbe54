// The frame of the pages: where we are, whether what is shown is live, and what is wrong.

import * as store from './store.js';
import { h, keep, setText } from './dom.js';

const pages = {
  cluster: ['Cluster', () => import('./cluster.js')],
  queue: ['Queue', () => import('./queue.js')],
  gangs: ['Gangs', () => import('./gangs.js')],
  locks: ['Locks', () => import('./locks.js')],
  health: ['Health', () => import('./health.js')],
  node: ['Node', () => import('./node.js')],
};
const root = document.getElementById('page');
const live = document.getElementById('live');
const banner = document.getElementById('banner');
const nav = document.querySelector('nav');
let page = null;
let gone = 'not connected yet';
let painted = true;
let pending = {};

/** What the navigation counts. */
const counters = {
  queue: ['waiting', () => Object.keys(store.waiting()).length],
  locks: ['locked nodes', () => Object.keys(store.table('locks')).length],
  health: ['nodes with something out of service', () => store.out.size],
};
nav.append(
  ...Object.entries(pages).filter(([name]) => name !== 'node').map(([name, [title]]) => h('a', { href: `#/${name}` }, title, h('b'))),
);

function count() {
  for (const link of nav.children) {
    const [words, of] = counters[link.hash.slice(2)] ?? [];
    const number = of?.();
    setText(link.lastChild, number ? ` ${number}` : '');
    link.title = number ? `${number} ${words}` : '';
  }
}

async function go() {
  const [name, ...rest] = (location.hash.replace(/^#\//, '') || 'cluster').split('/');
  const [title, load] = pages[name] ?? pages.cluster;
  const { default: make } = await load();
  page?.close?.();
  root.replaceChildren();
  root.className = `page-${name}`;
  document.title = `${rest.length ? decodeURIComponent(rest.join('/')) : title} · Baton`;
  for (const link of nav.children) link.setAttribute('aria-current', link.hash === `#/${name}` ? 'page' : 'false');
  page = make(root, decodeURIComponent(rest.join('/')));
  paint(null);
}

/** Draws at most once for each frame of the screen. */
function paint(changed) {
  if (changed === null || pending === null) pending = null;
  else for (const [name, keys] of Object.entries(changed)) (pending[name] ??= []).push(...keys);
  if (!painted) return;
  painted = false;
  const draw = () => {
    if (painted) return;
    painted = true;
    const changed = pending;
    pending = {};
    page?.update(changed);
    count();
    problems();
  };
  // A hidden page gets no frames.
  requestAnimationFrame(draw);
  setTimeout(draw, 250);
}

const words = {
  'API server': 'The API server does not answer; what is shown is old',
  scheduler: 'No scheduler answers; queue, gangs and explanations are missing or old',
};

function problems() {
  const found = Object.entries(store.table('problems'));
  keep(
    banner,
    found.map(([what]) => what),
    () => h('p'),
    (line, what) => {
      const { why } = store.table('problems')[what];
      setText(line, why === 'is being read' ? `${what}: being read …` : `${words[what] ?? `Not readable: ${what}`}: ${why}`);
    },
  );
  banner.hidden = found.length === 0;
}

const format = new Intl.DateTimeFormat([], { timeStyle: 'medium', hour12: false });
const clock = (at) => format.format(at);

function hear(message) {
  if (message.kind === 'gone') {
    gone = message.why;
  } else {
    gone = '';
    if (message.kind !== 'live') paint(store.apply(message));
    else if (message.hello) store.about.hello ??= message.hello;
  }
  if (message.at) store.setTime(message.at);
  tick();
}

/** The stream says at least every 15 seconds that it lives. */
function tick() {
  const { at } = store.about;
  const silent = at && store.now() * 1000 - at > 40_000;
  const dead = gone || (silent && 'nothing was heard');
  setText(live, dead ? `not live since ${at ? clock(at) : 'ever'}: ${dead}` : `live · ${clock(store.now() * 1000)}`);
  live.classList.toggle('dead', Boolean(dead));
}

async function listen() {
  if (typeof SharedWorker === 'undefined') return (await import('./stream.js')).join(hear);
  const worker = new SharedWorker('stream.js', { type: 'module' });
  worker.port.onmessage = ({ data }) => hear(data);
  return () => worker.port.postMessage('leave');
}

let leave = listen();
addEventListener('pagehide', async () => (await leave)());
addEventListener('pageshow', (event) => event.persisted && (leave = listen()));
document.querySelector('.skip').onclick = (event) => {
  event.preventDefault();
  root.focus();
};
addEventListener('hashchange', go);
setInterval(tick, 1000);
go();
