// The colours of waterfalls and images.

/** Points of a palette from dark to bright whose brightness grows evenly, so that it also works without colour vision. */
const POINTS = [[12, 8, 38], [58, 18, 94], [106, 30, 106], [155, 44, 95], [201, 66, 72], [235, 105, 42], [249, 155, 20], [248, 208, 62], [252, 255, 190]];

/** 256 colours as the bytes red, green and blue. */
export const PALETTE = new Uint8Array(256 * 3);
for (let i = 0; i < 256; i += 1) {
  const at = i / 255 * (POINTS.length - 1);
  const k = Math.min(POINTS.length - 2, Math.floor(at));
  for (let c = 0; c < 3; c += 1) PALETTE[3 * i + c] = POINTS[k][c] + (at - k) * (POINTS[k + 1][c] - POINTS[k][c]);
}

/** The grey of values that are missing. */
export const MISSING = [128, 128, 128];

/** Writes values into `pixels` (red, green, blue, opacity): `low` is the darkest colour, `high` the brightest; missing values are grey. */
export const paint = (values, low, high, pixels) => {
  const factor = 255 / (high - low || 1);
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    const at = 4 * i;
    if (Number.isNaN(value)) {
      [pixels[at], pixels[at + 1], pixels[at + 2]] = MISSING;
    } else {
      const k = 3 * Math.max(0, Math.min(255, Math.round((value - low) * factor)));
      pixels[at] = PALETTE[k];
      pixels[at + 1] = PALETTE[k + 1];
      pixels[at + 2] = PALETTE[k + 2];
    }
    pixels[at + 3] = 255;
  }
};
