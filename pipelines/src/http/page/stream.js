// Reads the stream of reduced frames of a ring (`/rings/NAME/scope`).
//
// A message is: length of the header and of the data in bytes (two 32-bit integers, little-endian), the header as JSON, and the
// data: the arrays that `header.arrays` lists, as 32-bit floats, little-endian.

/** Splits one message off `bytes`; returns `null` if it is not complete. */
export const split = (bytes) => {
  if (bytes.length < 8) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const [header, data] = [view.getUint32(0, true), view.getUint32(4, true)];
  const end = 8 + header + data;
  return bytes.length < end ? null : { header: bytes.subarray(8, 8 + header), data: bytes.subarray(8 + header, end), rest: bytes.subarray(end) };
};

/** Decodes a message into its header, with the arrays as members of `data`. */
export const decode = ({ header, data }) => {
  const message = JSON.parse(new TextDecoder().decode(header));
  message.data = {};
  // A copy, because the data need not start at a multiple of four bytes.
  const floats = new Float32Array(data.slice().buffer);
  let at = 0;
  for (const { name, shape } of message.arrays ?? []) {
    const count = shape.reduce((a, b) => a * b, 1);
    message.data[name] = floats.subarray(at, at + count);
    message.data[name].shape = shape;
    at += count;
  }
  return message;
};

/** Calls `receive` for each message of `url` until `signal` is aborted or the server ends the stream. */
export const read = async (url, signal, receive) => {
  const response = await fetch(url, { signal, cache: "no-store" });
  if (!response.ok) throw Object.assign(new Error((await response.text()).trim()), { status: response.status });
  const reader = response.body.getReader();
  let bytes = new Uint8Array();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(bytes.length + value.length);
    joined.set(bytes);
    joined.set(value, bytes.length);
    bytes = joined;
    for (let message = split(bytes); message; message = split(bytes)) {
      bytes = message.rest;
      receive(decode(message));
    }
  }
};
