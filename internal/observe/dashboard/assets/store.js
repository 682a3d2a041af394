// The state of the page, built from the events.

const state = {
  self: null,
  rows: new Map(), // by name: what an entry of the membership is
  loads: new Map(), // by the same name: what it has to do
  parts: {}, // etcd, revision, findings, requests, proxies, fleet, lost, doctor, failures, queues, totals, routes
  feed: [],
  history: { step: 5, total: {}, of: new Map() },
  ahead: 0, // of the proxy's clock before this one's, in ms
  lastEvent: 0, // time of the last event, in ms
  broken: false,
};

const maxPoints = 60;

const now = () => Date.now() + state.ahead;

// take merges one event into the state and returns the changes.
function take(message, whole) {
  state.lastEvent = Date.now();
  state.ahead = message.now - state.lastEvent;
  const change = { whole, rows: new Set(), loads: new Set(), point: whole || Boolean(message.point || message.history), members: whole, parts: new Set(), feed: [] };
  if (whole) {
    state.self = message.self;
    for (const all of [state.rows, state.loads]) all.clear();
    state.parts = {};
    state.feed = [];
  }
  if (message.history) readHistory(message.history);
  for (const [name, row] of Object.entries(message.rows || {})) {
    change.rows.add(name);
    if (row === null || !state.rows.has(name)) change.members = true;
    if (row === null) state.rows.delete(name);
    else state.rows.set(name, row);
  }
  for (const [name, load] of Object.entries(message.loads || {})) {
    change.loads.add(name);
    if (load === null) state.loads.delete(name);
    else state.loads.set(name, load);
  }
  for (const [name, part] of Object.entries(message.parts || {})) {
    change.parts.add(name);
    state.parts[name] = part;
  }
  if (message.feed && message.feed.length) {
    change.feed = message.feed;
    state.feed = state.feed.concat(message.feed).slice(-100);
  }
  if (message.point) addPoint(message.point);
  return change;
}

function readHistory(history) {
  Object.assign(state.history, { step: history.step, total: {} });
  state.history.of.clear();
  for (const [name, line] of Object.entries(history.total)) state.history.total[name] = line || [];
  for (const [key, [first, between]] of Object.entries(history.of)) state.history.of.set(key, [first || [], between || []]);
}

function push(line, value) {
  line.push(value === undefined ? null : value);
  if (line.length > maxPoints) line.shift();
}

// addPoint adds a point to every line; an instance without a point in the event had no requests.
// Lines on which nothing is left go, so that addresses of the past do not pile up.
function addPoint(point) {
  for (const [name, value] of Object.entries(point.total)) push(state.history.total[name] ||= [], value);
  const length = (state.history.total.served || []).length;
  for (const key of Object.keys(point.of)) {
    if (!state.history.of.has(key)) state.history.of.set(key, [new Array(length - 1).fill(null), new Array(length - 1).fill(null)]);
  }
  for (const [key, lines] of state.history.of) {
    const values = point.of[key] || [null, null];
    lines.forEach((line, i) => push(line, values[i]));
    if (lines.every((line) => line.every((v) => v === null))) state.history.of.delete(key);
  }
}

// latest returns the newest value of a line that is at most a minute old.
function latest(line) {
  for (let i = (line || []).length - 1, n = 0; i >= 0 && n < 12; i--, n++) if (line[i] !== null) return line[i];
  return null;
}

let source = null;

function connect() {
  disconnect();
  source = new EventSource('dashboard/events');
  const read = (whole) => (event) => {
    state.broken = false;
    render(take(JSON.parse(event.data), whole));
  };
  source.addEventListener('snapshot', read(true));
  source.addEventListener('diff', read(false));
  source.addEventListener('error', () => {
    state.broken = true;
    // A browser comes back by itself, but not after an answer that is no stream.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      sayWhy();
      setTimeout(() => { if (!source && !document.hidden) connect(); }, 5000);
    }
    renderLink();
  });
}

// sayWhy requests the events again to show the error, because an EventSource does not expose
// the response.
async function sayWhy() {
  const stop = new AbortController();
  try {
    const answer = await fetch('dashboard/events', { credentials: 'omit', cache: 'no-store', signal: stop.signal });
    if (answer.status === 503 && answer.headers.get('Content-Type')?.startsWith('text/plain')) say((await answer.text()).trim());
  } catch { /* it cannot be reached, as the page says already */ }
  stop.abort();
}

function disconnect() {
  if (source) source.close();
  source = null;
}

// A page that is hidden for a minute needs no events.
let away = 0;
document.addEventListener('visibilitychange', () => {
  clearTimeout(away);
  if (document.hidden) away = setTimeout(disconnect, 60000);
  else if (!source) connect();
});
