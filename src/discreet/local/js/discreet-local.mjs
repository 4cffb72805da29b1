// The client of discreet.local for browsers: one report, private before it leaves the page. No dependencies.
//
// Every description ("spec") comes from Python's randomizer.client(): integers only. Randomness is crypto.getRandomValues and nothing else; every draw is
// a whole number below a bound, by rejection, compared as whole numbers below 2**53 (Laplace noise: as BigInts). The same bytes give the same report as Python's respond
// (tests/local/test_javascript.py). A spec comes from a collector who is not trusted: `respond` first computes its epsilon from its integers and
// refuses one that claims less than it costs. No value is refused: what the spec does not know counts as a fixed public value, the same as in Python,
// because a device that reports some values and refuses others would tell the collector which of them its own is, for nothing.
//
//   import { respond, ClientBudget } from "./discreet-local.mjs";
//   const report = await respond(spec, 3);

const LIMIT = 2 ** 52;
const COIN = 2 ** 32;

/** Uniform 64-bit words as pairs [low, high] of 32 bits: from the browser's generator. */
export class Words {
  next() {
    const pair = new Uint32Array(2);
    globalThis.crypto.getRandomValues(pair);
    return [pair[0], pair[1]];
  }

  bytes(size) {
    return globalThis.crypto.getRandomValues(new Uint8Array(size));
  }
}

/** The same words from given bytes: for test vectors, never for a report. */
export class FedWords extends Words {
  constructor(bytes) {
    super();
    this.view = new DataView(Uint8Array.from(bytes).buffer);
    this.used = 0;
  }

  next() {
    if (this.used + 8 > this.view.byteLength) throw new Error("the fed bytes are used up");
    const pair = [this.view.getUint32(this.used, true), this.view.getUint32(this.used + 4, true)];
    this.used += 8;
    return pair;
  }

  bytes(size) {
    if (this.used + size > this.view.byteLength) throw new Error("the fed bytes are used up");
    this.used += size;
    return new Uint8Array(this.view.buffer, this.used - size, size);
  }
}

function require(condition, message) {
  if (!condition) throw new RangeError(`${message} Nothing was drawn.`);
}

function whole(...numbers) {
  for (const number of numbers) require(Number.isSafeInteger(number) && number >= 0, "the description must hold whole numbers.");
}

/** A uniform whole number below `bound`: the first bits of a word, drawn again while they are not below it. */
export function below(bound, words) {
  require(Number.isSafeInteger(bound) && bound >= 1 && bound <= LIMIT, "a bound must be from 1 to 2**52.");
  if (bound === 1) return 0;
  let bits = 1;
  while (2 ** bits < bound) bits += 1;
  for (;;) {
    const [low, high] = words.next();
    const value = bits <= 32 ? high >>> (32 - bits) : high * 2 ** (bits - 32) + (low >>> (64 - bits));
    if (value < bound) return value;
  }
}

function coin(numerator, denominator, words) {
  return below(denominator, words) < numerator;
}

/** One coin of 32 bits for each threshold, two to a word, the low half first. */
function coins(thresholds, words) {
  const tosses = [];
  let pair = null;
  thresholds.forEach((threshold, i) => {
    if (i % 2 === 0) pair = words.next();
    tosses.push(pair[i % 2] < threshold ? 1 : 0);
  });
  return tosses;
}

/** A uniform BigInt of so many bits: whole bytes, little-endian, of which the last bits are dropped. */
function bigBits(bits, words) {
  const bytes = words.bytes(Math.ceil(bits / 8));
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i -= 1) value = (value << 8n) | BigInt(bytes[i]);
  return value >> BigInt(8 * bytes.length - bits);
}

/**
 * A BigInt S with S <= 2**unit artanh(a / b) <= S + 3 unit, for 0 <= a / b <= 1/3 and unit >= 64.
 *
 * Proof: everything is rounded down. In units of 2**-unit, z is off by 1, z**2 by 1 + 2/3, a power by e' <= e / 9 + 5/9 + 1, so e < 1.8; a term
 *        by 1.8 + 1; what is left out when the power is zero by less than 1.8 * 9/8. There are at most unit / 3.16 + 3 terms, as z**2 <= 1/9.
 */
function artanh(a, b, unit) {
  let power = (a << unit) / b;
  const square = (power * power) >> unit;
  let total = 0n;
  for (let odd = 1n; power > 0n; odd += 2n) {
    total += power / odd;
    power = (power * square) >> unit;
  }
  return total;
}

function bitLength(number) {
  return number === 0n ? 0 : number.toString(2).length;
}

/** The constants of `enclosedLog`: floors of 2**bits ln(2) and 2**bits ln(255/256), less one, by 64 more bits than are kept. */
function logConstants(bits) {
  const unit = BigInt(bits + 64);
  const turns = 1n << BigInt(bitLength(BigInt(bits)));
  const logTwo = ((2n * artanh(1n, 3n, unit)) >> 64n) - 1n;
  const logCenter = -((2n * artanh(1n, 511n, unit)) >> 64n) - 2n;
  const terms = Math.floor((bits * 100) / 315) + 2;
  const coefficients = Array.from({ length: terms }, (_, i) => (1n << BigInt(bits)) / BigInt(2 * (terms - 1 - i) + 1));
  return { logTwo, lift: turns * logTwo, top: 3n * turns - logCenter, spread: 3n * turns + 10n, coefficients };
}

/** [low, high] around 2**bits * -ln(U) for U in [prefix, prefix + 1) / 2**(bits - 2), prefix > 0; the steps and the proof are those of sampling/_exponential.py. */
function enclosedLog(prefix, bits, { logTwo, top, spread, coefficients }) {
  const size = BigInt(bits);
  const shift = BigInt(bits - 1 - bitLength(prefix));
  const center = (1n << (size - 2n)) - (1n << (size - 10n));
  const mantissa = prefix << shift;
  const z = ((mantissa - center) << size) / (mantissa + center);
  const square = (z * z) >> size;
  const series = coefficients.reduce((total, coefficient) => coefficient + ((total * square) >> size), 0n);
  const high = shift * logTwo + top - ((z * series) >> (size - 1n));
  return [high - spread - (1n << (shift + 2n)), high];
}

/**
 * P(G >= k) = exp(-k a / b) exactly: G = floor(-ln(U) b / a), U drawn bit by bit until its bits decide. BigInts only; bit for bit Python's draw
 * (sampling/_single.py), but for its care that time does not go with size.
 */
function geometric([a, b], words) {
  let bits = 30 * Math.ceil((66 + bitLength(b / a)) / 30);
  for (let prefix = bigBits(bits - 2, words); ; prefix = (prefix << 60n) | bigBits(60, words), bits += 60) {
    if (prefix > 0n) {
      const constants = logConstants(bits);
      const [low, high] = enclosedLog(prefix, bits, constants);
      let spare = BigInt(bits + 60);
      spare += BigInt((((10 - bitLength(constants.lift * ((b << spare) / a))) % 30) + 30) % 30);
      const slope = (b << spare) / a;
      const shift = BigInt(bits) + spare;
      const least = (low * slope) >> shift;
      if (least === (high * (slope + 1n)) >> shift) return least;
    }
  }
}

/** Weights exp(-|k| a / b): a geometric size and a fair sign, minus zero refused. */
function discreteLaplace(rate, words) {
  for (;;) {
    const size = geometric(rate, words);
    const minus = bigBits(1, words) === 1n;
    if (!(minus && size === 0n)) return minus ? -size : size;
  }
}

function parity(a, b) {
  let bits = ((a >>> 0) & (b >>> 0)) ^ (Math.floor(a / COIN) & Math.floor(b / COIN));
  for (const shift of [16, 8, 4, 2, 1]) bits ^= bits >>> shift;
  return bits & 1;
}

/** k-ary randomized response: the truth with weight a, each other code with weight b. */
function told(value, domain, [a, b], words) {
  if (coin(a, a + (domain - 1) * b, words)) return value;
  const other = below(domain - 1, words);
  return other + (other >= value ? 1 : 0);
}

function onGrid(spec, value, words) {
  const clamped = Math.min(Math.max(value, spec.low), spec.high);
  const exact = ((clamped - spec.low) / (spec.high - spec.low)) * spec.steps;
  const floor = Math.min(Math.floor(exact), spec.steps);
  const rest = Math.floor((exact - floor) * COIN);
  return Math.min(floor + (coin(rest, COIN, words) ? 1 : 0), spec.steps);
}

/** The kinds of which every description has a domain. */
const ORACLES = ["kary", "unary", "subset", "hashing", "hadamard"];

function isCode(value, domain) {
  return Number.isSafeInteger(value) && value >= 0 && value < domain;
}

function isNumber(value) {
  return typeof value === "number" && !Number.isNaN(value);
}

/** A code below `domain`, and 0 for what is none; never minus zero. */
function code(value, domain) {
  return isCode(value, domain) ? value + 0 : 0;
}

function number(spec, value) {
  return isNumber(value) ? value : spec.low;
}

/** Values that are not one code, in the form in which they are drawn from: whatever is given, there is one. */
const VALUES = {
  duchi: number,
  piecewise: number,
  hybrid: (spec, value) => number(spec.duchi, value),
  laplace: number,
};

const CODES = {
  kary: (spec) => spec.domain,
  unary: (spec) => spec.domain,
  subset: (spec) => spec.domain,
  hashing: (spec) => spec.domain,
  hadamard: (spec) => spec.domain,
  longterm: (spec) => spec.domain,
  table: (spec) => spec.ends.length,
};

const KINDS = {
  kary: (spec, value, words) => told(value, spec.domain, spec.weights, words),

  unary(spec, value, words) {
    const [high, low] = spec.thresholds;
    return coins(Array.from({ length: spec.domain }, (_, i) => (i === value ? high : low)), words);
  },

  subset(spec, value, words) {
    const { domain, size } = spec;
    const [a, b] = spec.weights;
    const inside = coin(a * size, a * size + b * (domain - size), words);
    const urn = Array.from({ length: domain - 1 }, (_, i) => i);
    const count = inside ? size - 1 : size;
    for (let step = 0; step < count; step += 1) {
      const place = step + below(domain - 1 - step, words);
      [urn[step], urn[place]] = [urn[place], urn[step]];
    }
    const chosen = urn.slice(0, count).map((other) => other + (other >= value ? 1 : 0));
    if (inside) chosen.push(value);
    return chosen.sort((x, y) => x - y);
  },

  hashing(spec, value, words) {
    const masks = [];
    for (let i = 0; i < spec.masks; i += 1) masks.push(below(2 ** spec.length, words));
    const bucket = masks.reduce((sum, mask, i) => sum + parity(mask, value) * 2 ** i, 0);
    return [...masks, told(bucket, 2 ** spec.masks, spec.weights, words)];
  },

  hadamard(spec, value, words) {
    const { block, blocks } = spec;
    const [a, b] = spec.weights;
    const half = block / 2;
    const size = block * blocks;
    const own = Math.floor(value / (block - 1));
    const row = 1 + (value % (block - 1));
    const marked = coin(half * a, half * a + (size - half) * b, words);
    const place = below(marked ? half : size - half, words);
    if (place >= half) {
      const beyond = place - half;
      return beyond + (beyond >= own * block ? block : 0);
    }
    const low = row & -row;
    const spread = (place & (low - 1)) | ((place & -low) << 1);
    return own * block + (spread | (parity(spread, row) !== (marked ? 0 : 1) ? low : 0));
  },

  table(spec, value, words) {
    const ends = spec.ends[value];
    const drawn = below(ends[ends.length - 1], words);
    return ends.findIndex((end) => drawn < end);
  },

  duchi(spec, value, words) {
    const [a, b] = spec.weights;
    const number = onGrid(spec, value, words);
    return coin((spec.steps - number) * b + number * a, spec.steps * (a + b), words) ? 1 : 0;
  },

  piecewise(spec, value, words) {
    const [a, b] = spec.weights;
    const number = onGrid(spec, value, words);
    if (coin(spec.window * a, spec.window * a + spec.steps * b, words)) return number + below(spec.window, words);
    const far = below(spec.steps, words);
    return far + (far >= number ? spec.window : 0);
  },

  hybrid(spec, value, words) {
    const second = coin(spec.share, COIN, words);
    return [second ? 1 : 0, second ? KINDS.piecewise(spec.piecewise, value, words) : KINDS.duchi(spec.duchi, value, words)];
  },

  // beyond 2**53 (less than once in e**127 draws, for no scale is above 2**46) the sum is rounded after it was drawn
  laplace: (spec, value, words) => Number(BigInt(onGrid(spec, value, words)) + discreteLaplace(spec.rate.map(BigInt), words)),

  longterm: (spec, value, words) => KINDS_AGAIN.longterm(spec, STARTS.longterm(spec, value, words), words),
};

/** Permanent answers of long-term randomizers: drawn once, kept on the device. */
const STARTS = {
  longterm: (spec, value, words) => told(value, spec.domain, spec.permanent, words),
};

/** Reports of permanent answers, as often as one likes. */
const KINDS_AGAIN = {
  longterm: (spec, state, words) => told(state, spec.domain, spec.again, words),
};

/**
 * Costs are BigInts in units of 10**-6 / 2**100, rounded up: a claim of m millionths is exactly m << 100n, and a cost above it is refused, however
 * little it is above.
 */
const FINE = 100n;
const UNIT = 192n;

/** Not below 2 * 2**UNIT artanh(a / b), for 0 <= a / b <= 1/3. */
function twiceArtanh(a, b) {
  return 2n * (artanh(a, b, UNIT) + 3n * UNIT);
}

const LOG_TWO = twiceArtanh(1n, 3n);

/** What a ratio a / b >= 1 of two probabilities costs: ln(a / b) = k ln(2) + 2 artanh((a - c) / (a + c)) with c = 2**k b, c <= a < 2 c. */
function logCost(first, second) {
  const [a, b] = [BigInt(first), BigInt(second)];
  let k = BigInt(bitLength(a) - bitLength(b));
  if (a < b << k) k -= 1n;
  const c = b << k;
  return (((k * LOG_TWO + twiceArtanh(a - c, a + c)) * 1000000n) >> (UNIT - FINE)) + 1n;
}

function largest(costs) {
  return costs.reduce((most, cost) => (cost > most ? cost : most), 0n);
}

function odds(weights, truth, other) {
  const [a, b] = listed(weights, 2);
  whole(a, b);
  require(a > b && b >= 1 && truth * a + other * b <= LIMIT, "the weights are not those of a randomizer.");
  return logCost(a, b);
}

function listed(list, length) {
  require(Array.isArray(list) && list.length === length, `the description must hold a list of ${length}.`);
  return list;
}

function ordered({ low, high }) {
  const span = high - low;
  require(Number.isFinite(low) && Number.isFinite(high) && span > 0 && span < Infinity, "the bounds are not in order.");
}

function share(threshold) {
  whole(threshold);
  require(threshold > 0 && threshold < COIN, "a threshold must be between 0 and 2**32.");
  return BigInt(threshold);
}

const COSTS = {
  kary(spec) {
    require(spec.domain >= 2, "there must be two values or more.");
    return odds(spec.weights, 1, spec.domain - 1);
  },

  unary(spec) {
    const [p, q] = listed(spec.thresholds, 2).map(share);
    const [more, less] = p > q ? [p, q] : [q, p];
    return logCost(more * (BigInt(COIN) - less), less * (BigInt(COIN) - more));
  },

  subset(spec) {
    whole(spec.size);
    require(spec.size >= 1 && spec.size < spec.domain, "the sets must be smaller than the domain.");
    return odds(spec.weights, spec.size, spec.domain - spec.size);
  },

  hashing(spec) {
    whole(spec.length, spec.masks);
    require(spec.masks >= 1 && spec.masks <= 30 && spec.length <= 52, "there are too many masks, or none.");
    return odds(spec.weights, 1, 2 ** spec.masks - 1);
  },

  hadamard(spec) {
    whole(spec.block, spec.blocks);
    require(spec.block >= 2 && spec.block <= 2 ** 30 && (spec.block & (spec.block - 1)) === 0, "a block must be a power of two.");
    require(spec.blocks * (spec.block - 1) >= spec.domain && spec.blocks * spec.block <= LIMIT, "the blocks do not hold the domain.");
    return odds(spec.weights, spec.block / 2, spec.block * spec.blocks - spec.block / 2);
  },

  table(spec) {
    require(Array.isArray(spec.ends) && spec.ends.length >= 1 && spec.ends.every(Array.isArray), "the rows are not those of a lottery.");
    // every probability as [weight, total of its row]
    const rows = spec.ends.map((ends) => {
      whole(...ends);
      const total = ends[ends.length - 1];
      require(ends.length === spec.ends[0].length && total > 0 && total <= LIMIT, "the rows are not those of a lottery.");
      const weights = ends.map((end, i) => end - (i ? ends[i - 1] : 0));
      require(weights.every((weight) => weight >= 0), "weights must not be negative.");
      return weights.map((weight) => [BigInt(weight), BigInt(total)]);
    });
    const above = ([a, s], [b, t]) => a * t > b * s;
    const costs = rows[0].map((_, j) => {
      const column = rows.map((row) => row[j]);
      const [a, s] = column.reduce((most, one) => (above(one, most) ? one : most));
      const [b, t] = column.reduce((least, one) => (above(least, one) ? one : least));
      require(b > 0n || a === 0n, "a report is possible for some values only.");
      return a > 0n ? logCost(a * t, b * s) : 0n;
    });
    return largest(costs);
  },

  duchi(spec) {
    whole(spec.steps);
    require(spec.steps >= 1, "the grid has no steps.");
    ordered(spec);
    return odds(spec.weights, spec.steps, spec.steps);
  },

  piecewise(spec) {
    whole(spec.steps, spec.window);
    require(spec.steps >= 1 && spec.window >= 1, "the grid has no steps, or no window.");
    ordered(spec);
    return odds(spec.weights, spec.window, spec.steps);
  },

  hybrid(spec) {
    whole(spec.share);
    require([spec.duchi, spec.piecewise].every((part) => typeof part === "object" && part !== null), "the parts are missing.");
    return largest([COSTS.duchi(spec.duchi), COSTS.piecewise(spec.piecewise)]);
  },

  laplace(spec) {
    whole(spec.steps);
    require(spec.steps >= 1, "the grid has no steps.");
    ordered(spec);
    require(listed(spec.rate, 2).every((part) => typeof part === "string" && /^[1-9][0-9]{0,999}$/.test(part)), "the rate must be two whole numbers, as text.");
    const [a, b] = spec.rate.map(BigInt);
    require(b / a <= 2n ** 46n, "the noise is too wide.");
    return (((BigInt(spec.steps) * a * 1000000n) << FINE) + b - 1n) / b;
  },

  longterm(spec) {
    odds(spec.again, 1, spec.domain - 1);
    return odds(spec.permanent, 1, spec.domain - 1);
  },
};

/** What a description really costs, from its own integers. Refuses one that claims less. */
function costOf(spec) {
  require(typeof spec === "object" && spec !== null && Object.hasOwn(COSTS, spec.kind), "this kind of description is not known.");
  whole(spec.microepsilon);
  require(spec.microepsilon >= 1, "nothing is free.");
  // a domain that is missing where one is needed is no whole number
  if (spec.domain !== undefined || ORACLES.includes(spec.kind)) {
    whole(spec.domain);
    require(spec.domain >= 2 && spec.domain <= LIMIT, "there must be two values or more.");
  }
  const cost = COSTS[spec.kind](spec);
  require(cost <= BigInt(spec.microepsilon) << FINE, "the description costs more than it claims.");
  return cost;
}

/** The epsilon that a description really costs, for people to read: rounded to a number. Refuses one that claims less. */
export function epsilonOf(spec) {
  return Number(costOf(spec)) / 1e6 / 2 ** Number(FINE);
}

/** The value that is reported: the given one, or the fixed public one in place of what the description does not know. */
function known(spec, value) {
  return Object.hasOwn(CODES, spec.kind) ? code(value, CODES[spec.kind](spec)) : VALUES[spec.kind](spec, value);
}

/** The report of one value under a description. */
export async function respond(spec, value, words = new Words()) {
  costOf(spec);
  return KINDS[spec.kind](spec, known(spec, value), words);
}

/**
 * A budget on the device, in millionths of epsilon: each question is paid for once, before the value is looked at; asked again it gets the stored report
 * (or another copy of the stored permanent answer). Keep `toJSON()` in the browser's storage.
 */
export class ClientBudget {
  constructor(microepsilon, state = { spent: 0, answers: {} }) {
    whole(microepsilon, state.spent);
    require(state.spent <= microepsilon, "more is spent than there is.");
    this.limit = microepsilon;
    this.spent = state.spent;
    this.answers = { ...state.answers };
  }

  get remaining() {
    return this.limit - this.spent;
  }

  async answer(question, spec, value, words = new Words()) {
    const key = JSON.stringify([question, spec]);
    const lasting = Object.hasOwn(STARTS, spec.kind);
    if (!Object.hasOwn(this.answers, key)) {
      costOf(spec);
      require(spec.microepsilon <= this.remaining, `this answer costs more than the ${this.remaining / 1e6} that is left.`);
      this.spent += spec.microepsilon;
      this.answers[key] = (lasting ? STARTS : KINDS)[spec.kind](spec, known(spec, value), words);
    }
    const stored = await this.answers[key];
    this.answers[key] = stored;
    return lasting ? KINDS_AGAIN[spec.kind](spec, stored, words) : stored;
  }

  toJSON() {
    return { limit: this.limit, spent: this.spent, answers: this.answers };
  }

  static from({ limit, spent, answers }) {
    return new ClientBudget(limit, { spent, answers });
  }
}
