// Asks Perfetto's trace processor, compiled to WebAssembly, about a trace: the rows of each statement, as JSON.
// node processor.mjs FOLDER SQL... < TRACE: FOLDER has engine_bundle.js and trace_processor*.wasm of a release of Perfetto.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const [folder, ...statements] = process.argv.slice(2);

// What a browser's worker has, as far as the engine uses it.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: 'http://localhost/engine_bundle.js' };
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.name = String(url).split('/').pop();
  }

  send() {
    this.response = new Uint8Array(readFileSync(join(folder, this.name))).buffer;
  }
};
console.log = console.warn = (...text) => process.stderr.write(`${text.join(' ')}\n`);
// It refuses to run in Node.
new Function('process', readFileSync(join(folder, 'engine_bundle.js'), 'utf8'))(undefined);

// The messages of Perfetto's trace_processor.proto, by field number.
const varint = value => {
  const bytes = [];
  for (value = BigInt(value); value > 127n; value >>= 7n) bytes.push(Number(value & 127n) | 128);
  return [...bytes, Number(value)];
};
const number = (field, value) => Buffer.from([...varint(field * 8), ...varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([Buffer.from([...varint(field * 8 + 2), ...varint(value.length)]), value]);

function* fields(buffer) {
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const tag = Number(read());
    const [field, wire] = [tag >> 3, tag & 7];
    if (wire === 0) yield [field, read()];
    else {
      const length = wire === 2 ? Number(read()) : wire === 1 ? 8 : 4;
      yield [field, buffer.subarray(at, (at += length))];
    }
  }
}

function* varints(buffer) {
  for (let at = 0; at < buffer.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    yield BigInt.asIntN(64, value);
  }
}

// A query's result comes in parts, whose cells are stored by type.
class Result {
  columns = [];
  cells = [];

  add(part) {
    for (const [field, value] of fields(part)) {
      if (field === 1) this.columns.push(value.toString());
      if (field === 2 && value.length) throw new Error(value.toString());
      if (field === 3) this.addCells(value);
    }
  }

  addCells(batch) {
    const types = [], integers = [], floats = [], texts = [];
    for (const [field, value] of fields(batch)) {
      if (field === 1) types.push(...value);
      if (field === 2) integers.push(...varints(value));
      if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
      if (field === 5) texts.push(...value.toString().split('\0'));
      if (field === 6) this.isComplete = value === 1n;
    }
    for (const type of types) {
      if (type === 2) this.cells.push(Number(integers.shift()));
      else if (type === 3) this.cells.push(floats.shift());
      else this.cells.push(type === 4 ? texts.shift() : null);
    }
  }

  rows() {
    const rows = [];
    for (let at = 0; at < this.cells.length; at += this.columns.length) {
      rows.push(Object.fromEntries(this.columns.map((name, index) => [name, this.cells[at + index]])));
    }
    return rows;
  }
}

const { port1, port2 } = new MessageChannel();
const results = [];
let sent = 0;
const send = (method, ...more) => {
  const message = Buffer.concat([number(1, sent++), number(2, method), ...more]);
  port2.postMessage(new Uint8Array(bytes(1, message)));
};
const ask = () => {
  if (results.length === statements.length) {
    process.stdout.write(`${JSON.stringify(results.map(result => result.rows()))}\n`);
    process.exit(0);
  }
  const sql = statements[results.length];
  results.push(new Result());
  send(3, bytes(103, bytes(1, Buffer.from(sql))));
};
port2.onmessage = ({ data }) => {
  for (const [, message] of fields(Buffer.from(data))) {
    const all = [...fields(message)];
    const response = Number(all.find(([field]) => field === 3)?.[1] ?? 0n);
    const part = all.find(([field]) => field === 203)?.[1];
    const appended = all.find(([field]) => field === 201)?.[1];
    for (const [field, value] of appended ? fields(appended) : []) {
      if (field === 2 && value.length) throw new Error(value.toString());
    }
    if (part) {
      results.at(-1).add(part);
      if (results.at(-1).isComplete) ask();
    } else if (response === 2) ask();
  }
};

// Once the engine has set itself up.
setTimeout(() => {
  globalThis.onmessage({ data: port1 });
  send(1, bytes(101, readFileSync(0)));
  send(2);
});
