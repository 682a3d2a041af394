// Elements and formatting. Text is inserted as text, never as HTML: names come from etcd,
// where other programs write them.

// storage returns a storage of the browser, or one in memory if the browser blocks storage,
// in which case even accessing it throws.
function storage(name) {
  try { if (window[name]) return window[name]; } catch { /* as below */ }
  const kept = new Map();
  return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) };
}

const byId = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'onclick') node.addEventListener('click', value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// setText changes an element only if its text differs.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.getAttribute('class') !== name) node.setAttribute('class', name);
}

const number = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

function count(n) {
  if (n >= 1e6) return number.format(n / 1e6) + 'M';
  if (n >= 1e4) return number.format(n / 1e3) + 'k';
  return number.format(n);
}

function plural(n, one, many) {
  return number.format(n) + ' ' + (n === 1 ? one : many || one + 's');
}

// millis formats a latency as [number, unit].
function millis(ms) {
  if (ms === null || ms === undefined) return ['–', ''];
  if (ms < 10) return [ms.toFixed(1), 'ms'];
  if (ms < 1000) return [ms.toFixed(0), 'ms'];
  if (ms < 10000) return [(ms / 1000).toFixed(2), 's'];
  return [(ms / 1000).toFixed(0), 's'];
}

function latency(ms) {
  const [n, unit] = millis(ms);
  return unit ? n + ' ' + unit : n;
}

function percent(share) {
  return (share * 100).toFixed(0) + ' %';
}

// age formats a duration with one unit.
function age(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 100) return s.toFixed(0) + ' s';
  if (s < 6000) return (s / 60).toFixed(0) + ' min';
  if (s < 48 * 3600) return (s / 3600).toFixed(0) + ' h';
  return (s / 86400).toFixed(0) + ' d';
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString('en-GB', { timeZoneName: 'short' });
}

function moment(ms) {
  return new Date(ms).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'long' });
}
