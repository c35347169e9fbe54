// The rows of every table, as the server published them, and the time by its clock.

import { faults } from './devices.js';

export const rows = {};
export const about = { at: 0, skew: 0, hello: null };

/** A merge patch (RFC 7396). Values are plain JSON; `null` takes a key away. */
export function merge(target, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  if (target === null || typeof target !== 'object' || Array.isArray(target)) target = {};
  for (const key of Object.keys(patch)) {
    if (key === '__proto__') continue;
    if (patch[key] === null) delete target[key];
    else target[key] = merge(target[key], patch[key]);
  }
  return target;
}

/** The rows of a table, by key. */
export const table = (name) => rows[name] ?? {};

/** Nodes on which something is out of service, and what. It is kept by changes: no frame looks at every node. */
export const out = new Map();

function look(names) {
  for (const name of names) {
    const found = faults(table('nodes')[name] ?? {});
    if (found.length) out.set(name, found);
    else out.delete(name);
  }
}

/** What waits: the queue, and TYJobs that have no place. */
export function waiting() {
  const all = { ...table('queue') };
  for (const [name, job] of Object.entries(table('jobs'))) {
    if (job.stage && job.stage !== 'Pending') continue;
    all[`TYJob ${name}`] = { kind: 'TYJob', name, queuedAt: job.ageAt, state: job.scheduleState, message: job.message };
  }
  return all;
}

/** Takes a snapshot or a delta; says which keys of which tables may have changed, `null` for all. */
export function apply(message) {
  setTime(message.at);
  if (message.kind === 'snapshot') {
    for (const name of Object.keys(rows)) delete rows[name];
    Object.assign(rows, message.rows);
    out.clear();
    look(Object.keys(table('nodes')));
    return null;
  }
  const changed = {};
  for (const [name, patch] of Object.entries(message.rows)) {
    rows[name] = merge(rows[name], patch);
    changed[name] = Object.keys(patch);
  }
  look(changed.nodes ?? []);
  return changed;
}

/** `at`: milliseconds of the server's clock, now. */
export function setTime(at) {
  about.at = at;
  about.skew = at - Date.now();
}

/** Seconds by the server's clock. */
export const now = () => (Date.now() + about.skew) / 1000;
