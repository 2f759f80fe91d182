// A run keeps its color wherever it is drawn: from its id, else the first that is free.
const COUNT = 8;
export interface Look {
  color: string;
  dash: number[];
}

function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619) >>> 0;
  return value;
}

export function assignLooks(ids: string[]): Map<string, Look> {
  const taken = new Set<number>();
  const found = new Map<string, Look>();
  ids.forEach((id, index) => {
    let slot = hash(id) % COUNT;
    if (taken.has(slot) && taken.size < COUNT) slot = [...Array(COUNT).keys()].find((at) => !taken.has(at)) ?? slot;
    if (taken.size >= COUNT) slot = index % COUNT;
    taken.add(slot);
    const round = Math.floor(index / COUNT);
    found.set(id, { color: `series-${slot + 1}`, dash: round === 0 ? [] : round === 1 ? [6, 4] : [2, 3] });
  });
  return found;
}
