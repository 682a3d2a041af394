// The page.

const themes = [['', 'as the system has them'], ['light', 'light'], ['dark', 'dark']];
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

function render(change) {
  if (change.whole) renderSelf();
  renderLink();
  renderFleet(change);
  renderTiles(change);
  if (change.whole || change.parts.has('findings')) renderFindings();
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
byId('search').addEventListener('input', arrange);
byId('only').addEventListener('change', arrange);
setInterval(renderLink, 1000);
setInterval(() => {
  for (const line of fleet.lines.values()) writeAge(line);
  if (state.parts.proxies) renderProxies();
}, 10000);
connect();
