// Start of the page: theme, view, and rendering of events.

const themes = [['', 'system'], ['light', 'light'], ['dark', 'dark']];
const themePlace = 'pdmesh-theme', themeStorage = storage('localStorage');
const darkSystem = matchMedia('(prefers-color-scheme: dark)');

function setTheme(choice) {
  const dark = choice === 'dark' || choice === '' && darkSystem.matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  byId('theme').setAttribute('aria-label', 'Colours: ' + themes.find((t) => t[0] === choice)[1]);
}

const themeChoice = () => {
  const choice = themeStorage.getItem(themePlace) || '';
  return themes.some((t) => t[0] === choice) ? choice : '';
};

// The view is in the fragment of the URL: q, only, sort and open.
const view = { open: new Set() };

function readView() {
  const want = new URLSearchParams(location.hash.slice(1)), sort = want.get('sort') || 'who', id = sort.replace('-', '');
  if (location.hash && ![...want.keys()].some((k) => ['q', 'only', 'sort', 'open'].includes(k))) return; // a part of the page
  byId('search').value = want.get('q') || '';
  byId('only').value = ['serving', 'out'].includes(want.get('only')) ? want.get('only') : '';
  if (columns.some((c) => c[0] === id && c[2])) fleet.sort = [id, sort === id ? 1 : -1];
  view.open = new Set(want.getAll('open'));
  for (const line of fleet.lines.values()) if (Boolean(line.more) !== view.open.has(line.name)) toggleDetails(line);
  markSort();
  if (state.self) arrange();
}

function writeView() {
  const is = new URLSearchParams(), put = (name, value) => { if (value) is.append(name, value); };
  put('q', byId('search').value.trim());
  put('only', byId('only').value);
  put('sort', fleet.sort.join() === 'who,1' ? '' : (fleet.sort[1] < 0 ? '-' : '') + fleet.sort[0]);
  for (const name of view.open) put('open', name);
  history.replaceState(null, '', String(is) ? '#' + is : location.pathname + location.search);
}

function render(change) {
  if (change.whole) renderSelf();
  renderLink();
  renderFleet(change);
  renderTiles(change);
  if (change.whole || change.parts.has('findings') || change.parts.has('doctor')) renderFindings();
  if (change.whole || change.parts.has('failures')) renderFailures();
  if (change.whole || change.parts.has('queues') || change.parts.has('totals')) renderQueues();
  if (change.whole || change.parts.has('totals')) renderKeys();
  if (change.whole || change.parts.has('routes')) renderRoutes();
  if (change.whole || change.parts.has('proxies') || change.parts.has('fleet')) renderScope();
  if (change.whole || change.feed.length) renderFeed(change);
  if (change.whole || change.parts.has('proxies')) renderProxies();
  if (change.whole || change.parts.has('etcd') || change.parts.has('revision')) renderEtcd();
  if (managed && byId('act-dialog').open) writeAct();
}

setTheme(themeChoice());
darkSystem.addEventListener('change', () => setTheme(themeChoice()));
byId('theme').addEventListener('click', () => {
  const next = themes[(themes.findIndex((t) => t[0] === themeChoice()) + 1) % themes.length][0];
  themeStorage.setItem(themePlace, next);
  setTheme(next);
});
buildTiles();
buildTables();
buildDialogs();
renderKey();
byId('search').addEventListener('input', () => { arrange(); writeView(); });
byId('only').addEventListener('change', () => { arrange(); writeView(); });
addEventListener('hashchange', readView);
readView();
setInterval(() => { renderLink(); if (state.self) writeNotes(); }, 1000);
setInterval(() => {
  for (const line of fleet.lines.values()) writeAge(line);
  if (state.parts.proxies) renderProxies();
}, 10000);
connect();
