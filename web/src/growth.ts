/** "Watch it grow": stages of a picture, played or chosen with a slider. */
import type { Growth, Summary } from "./protocol";

const INTERVAL = 260; // milliseconds between frames

const element = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;

export class Player {
  private readonly group = element<HTMLFieldSetElement>("growing");
  private readonly button = element<HTMLButtonElement>("play");
  private readonly slider = element<HTMLInputElement>("frame");
  private readonly caption = element("caption");
  private summary: Summary | undefined;
  private playing = false;
  private since = 0;

  constructor(
    private readonly ask: (growth: Growth, value: number) => void,
    private readonly showFinal: () => void,
  ) {
    this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    this.slider.addEventListener("input", () => {
      this.pause();
      this.show();
    });
    for (const radio of this.group.querySelectorAll("input[type=radio]"))
      radio.addEventListener("change", () => {
        this.pause();
        this.reset();
        this.showFinal();
      });
  }

  /** A file with these lengths is on its way. */
  load(summary: Summary): void {
    this.summary = summary;
    this.reset();
  }

  /** Its complete picture is on show. */
  ready(): void {
    this.group.disabled = false;
  }

  /** Another picture is about to be shown. */
  stop(): void {
    this.pause();
    this.group.disabled = true;
  }

  /** A frame has been drawn: go on with the next. */
  shown(): void {
    if (!this.playing) return;
    setTimeout(() => this.playing && this.advance(), Math.max(0, INTERVAL - (performance.now() - this.since)));
  }

  private get growth(): Growth {
    return this.group.querySelector<HTMLInputElement>("input[type=radio]:checked")!.value as Growth;
  }

  /** Numbers of latents, or of steps, of the frames before the complete picture. */
  private get values(): number[] {
    if (!this.summary) return [];
    const { lengths, steps } = this.summary;
    return this.growth === "latents" ? lengths : Array.from({ length: steps + 1 }, (_, step) => step);
  }

  private play(): void {
    this.playing = true;
    this.button.textContent = "Stop";
    this.slider.value = "0";
    this.show();
  }

  private pause(): void {
    this.playing = false;
    this.button.textContent = "Play";
  }

  private advance(): void {
    this.slider.value = String(Number(this.slider.value) + 1);
    this.show();
    if (this.slider.value === this.slider.max) this.pause();
  }

  private reset(): void {
    this.slider.max = String(this.values.length);
    this.slider.value = this.slider.max;
    this.describe();
  }

  private show(): void {
    this.since = performance.now();
    const value = this.values[Number(this.slider.value)];
    if (value === undefined) this.showFinal();
    else this.ask(this.growth, value);
    this.describe();
  }

  private describe(): void {
    const value = this.values[Number(this.slider.value)];
    this.caption.textContent = describe(this.growth, value, this.summary);
    this.slider.setAttribute("aria-valuetext", this.caption.textContent);
  }
}

function describe(growth: Growth, value: number | undefined, summary: Summary | undefined): string {
  if (!summary) return "";
  if (value === undefined) return `The complete picture: ${summary.tiles} tiles in ${summary.bases} bases, corrected by the network on pixels.`;
  if (growth === "latents")
    return value === 0
      ? "The three mean colours of each tile, without a single latent."
      : `The first ${value === 1 ? "latent" : `${value} latents`} of each tile, or fewer where it has fewer; not yet corrected by the network on pixels.`;
  return `${value} of ${summary.steps} steps of the recurrence from the centre of each tile; not yet corrected by the network on pixels.`;
}
