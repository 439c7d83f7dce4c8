/* How long transfers and steps take, by the formulas of the planner (transfers.py; a test compares). */

import { sumOf } from "./number_words.js";

/** The links from one machine to another, each with its bytes per second, and the latency. */
export function routeOf(costs, from, to) {
  const direct = costs.links.find(({ between }) => between.includes(from.name) && between.includes(to.name));
  if (direct) return { rates: [[JSON.stringify([from.name, to.name]), direct.bytes_per_s]], late: direct.latency_s, last: direct.bytes_per_s };
  const rates = [[JSON.stringify([from.name, null]), from.link_bytes_per_s], [JSON.stringify([null, to.name]), to.link_bytes_per_s]];
  return { rates, late: to.latency_s, last: to.link_bytes_per_s };
}

/** How much longer a part waits for what it reads, since what goes on from its step before uses the driver's link, too. */
function slowed(part, carried) {
  const read = carried.filter(({ reader }) => reader === part);
  const own = { ...read[0], bytes: sumOf(read, ({ bytes }) => bytes) };
  return read.length ? sumOf(carried.filter(({ source }) => source === part), (other) => slowedBy(other, own)) : 0;
}

/** How much longer one transfer takes since another one uses its link, too, in max-min fair shares. */
export function slowedBy(other, own) {
  const both = [[own, other], [other, own]].map(([one, two]) => {
    const rate = Math.min(one.rate, Math.max(own.most / 2, own.most - two.rate));
    return { rate, seconds: Math.max(one.bytes - Math.max(two.begins - one.begins, 0) * one.rate, 0) / rate };
  });
  return Math.min(both[0].seconds, both[1].seconds) * (1 - both[0].rate / own.rate);
}

/** Seconds of parts that run for `run` on their devices; -1 is the driver among sources and readers. */
export function timesOf(costs, transfers, run, devices) {
  const inTurn = costs.overlap === "none";
  const machines = [...devices, costs.driver];
  const [received, reported, stored, sent, late] = [0, 1, 2, 3, 4].map(() => machines.map(() => 0));
  const load = new Map();
  const carried = new Map(); // by writer and reader, what the driver's link carries
  for (const { bytes, source, readers } of transfers) {
    const reached = new Set([machines.at(source).name]);
    const used = new Set();
    const far = readers.filter((reader) => bytes && !reached.has(machines.at(reader).name));
    const isSmall = bytes <= costs.message_bytes;
    const isRelayed = isSmall && far.length > 0 && source !== -1;
    for (const reader of isRelayed ? [-1, ...far] : far) {
      const to = machines.at(reader);
      if (reached.has(to.name)) continue;
      reached.add(to.name);
      const sender = isRelayed && reader !== -1 ? -1 : source;
      const [waiting, waits] = isSmall && reader === -1 ? [source, reported] : [reader, received];
      const route = routeOf(costs, machines.at(sender), to);
      const [first, rate] = route.rates[0];
      const at = (index) => (index < 0 ? devices.length : index);
      waits[at(waiting)] += bytes / (inTurn ? route.last : Math.min(...route.rates.map(([, one]) => one)));
      if (!isSmall) stored[at(reader)] += costs.store_s;
      if (!isSmall) late[at(reader)] = Math.max(late[at(reader)], route.late);
      if (!inTurn || !used.has(first)) sent[at(sender)] += bytes / rate;
      used.add(first);
      for (const [link, one] of route.rates) load.set(link, (load.get(link) ?? 0) + bytes / one);
      if (first !== JSON.stringify([costs.driver.name, null])) continue;
      const before = carried.get(`${source} ${reader}`)?.bytes ?? 0;
      const alone = Math.min(...route.rates.map(([, one]) => one));
      carried.set(`${source} ${reader}`, { source, reader, bytes: before + bytes, rate: alone, begins: route.late, most: rate });
    }
  }
  const message = (device) => (device.name === costs.driver.name ? 0 : routeOf(costs, costs.driver, device).late);
  const own = [...run.map((seconds, i) => seconds + (inTurn ? 0 : 2 * message(devices[i]) + costs.step_s)), 0];
  const step = own.map((seconds, i) => seconds + received[i] + reported[i] + stored[i] + late[i] + (inTurn ? sent[i] : 0));
  const latency_s = sumOf(step, (seconds) => seconds);
  const totals = (seconds) => {
    const found = new Map();
    seconds.forEach((own, i) => found.set(machines[i].name, (found.get(machines[i].name) ?? 0) + own));
    return [...found.values()];
  };
  if (inTurn) return { step_s: step.slice(0, -1), busy_s: step.slice(0, -1), period_s: Math.max(...totals(step)), latency_s };
  // A device has two steps at a time: it computes the first, and messages and inputs of the other one come meanwhile.
  // Both receive, or report, at the same time where that takes longer than computing.
  const both = run.map((seconds, i) => Math.max(received[i] - seconds, 0) + Math.max(reported[i] - seconds, 0));
  const halves = run.map((_, i) => (step[i] + slowed(i, [...carried.values()]) + both[i]) / 2);
  const busy_s = run.map((seconds, i) => Math.max(seconds, halves[i], received[i], sent[i]));
  return { step_s: step.slice(0, -1), busy_s, period_s: Math.max(...totals(run), ...totals(halves), ...load.values(), 0), latency_s };
}
