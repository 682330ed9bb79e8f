/** Places of cells on a map. Pure. */

/** Edge of a cell, in pixels, by number of items. */
export function cellSize(count) {
  if (count <= 400) return 26;
  return count <= 2500 ? 16 : 10;
}

/**
 * Place items in rows below the heading of their group. Items are sorted by group. Returns the columns, the total height,
 * and for each group its heading, first item and number of items.
 */
export function placeCells(items, width, size, heading) {
  const columns = Math.max(1, Math.floor(width / size));
  const groups = [];
  let height = 0;
  for (let first = 0; first < items.length;) {
    const { group } = items[first];
    let end = first;
    while (end < items.length && items[end].group === group) end += 1;
    const top = height + heading;
    groups.push({ group, first, count: end - first, heading: height, top });
    height = top + Math.ceil((end - first) / columns) * size;
    first = end;
  }
  return { columns, size, height, groups };
}

/** Return the index of the item at a point, or null. */
export function cellAt(layout, x, y) {
  const group = layout.groups.findLast((one) => one.top <= y);
  const column = Math.floor(x / layout.size);
  if (!group || column < 0 || column >= layout.columns) return null;
  const index = Math.floor((y - group.top) / layout.size) * layout.columns + column;
  return index < group.count ? group.first + index : null;
}

/** Return the left upper corner of an item's cell. */
export function cornerOf(layout, index) {
  const group = layout.groups.findLast((one) => one.first <= index);
  const place = index - group.first;
  return [(place % layout.columns) * layout.size, group.top + Math.floor(place / layout.columns) * layout.size];
}
