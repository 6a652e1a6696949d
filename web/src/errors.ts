/** What a visitor is told: one sentence that names the problem and what to do. */
export class FinolaError extends Error {}

/** A `.finola` file that violates a rule of docs/format.md. */
export class FormatError extends FinolaError {
  constructor(problem: string) {
    super(`Not a valid .finola file: ${problem}.`);
  }
}
