// Lines of the last five minutes.

// The path of a line in a box of maxPoints by high; points that are missing are left out.
function curve(line, top, high) {
  let d = '', open = false;
  const shift = maxPoints - line.length;
  line.forEach((v, i) => {
    if (v === null) { open = false; return; }
    const x = shift + i + 1, y = high - 1.5 - (Math.min(v, top) / top) * (high - 3);
    // A point between two gaps would not be seen as a line.
    d += open ? `L${x} ${y.toFixed(2)}` : `M${x - 0.6} ${y.toFixed(2)}L${x} ${y.toFixed(2)}`;
    open = true;
  });
  return d;
}

// The area below a line, one for each stretch without a gap.
function area(line, top, high) {
  let d = '', from = 0, last = 0;
  const shift = maxPoints - line.length;
  const end = () => { if (from) d += `L${last} ${high}L${from} ${high}Z`; from = 0; };
  line.forEach((v, i) => {
    if (v === null) { end(); return; }
    const x = shift + i + 1, y = high - 1.5 - (Math.min(v, top) / top) * (high - 3);
    d += from ? `L${x} ${y.toFixed(2)}` : `M${x - 0.6} ${high}L${x - 0.6} ${y.toFixed(2)}L${x} ${y.toFixed(2)}`;
    if (!from) from = x - 0.6;
    last = x;
  });
  end();
  return d;
}

const highest = (...lines) => Math.max(0, ...lines.flatMap((line) => line.filter((v) => v !== null)));

// A chart draws one line with its area and maybe a second, dashed one.
function chart(high, two) {
  const below = svg('path', { class: 'area' }), line = svg('path', { class: 'curve' }), second = two ? svg('path', { class: 'curve second' }) : null;
  const node = svg('svg', { viewBox: `0 0 ${maxPoints + 1} ${high}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' }, below, line);
  if (second) node.append(second);
  return {
    node,
    draw(values, others) {
      const top = highest(values, others || []) * 1.1 || 1;
      below.setAttribute('d', area(values, top, high));
      line.setAttribute('d', curve(values, top, high));
      if (second) second.setAttribute('d', curve(others || [], top, high));
    },
  };
}
