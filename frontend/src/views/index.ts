// Every view by its name in payloads.

import type { VNode } from "../core/html";
import type { Host } from "../core/host";
import type { Payload } from "../core/payload";
import { ClaimsView } from "./claims";
import { CompareView } from "./compare";
import { ConvolutionView } from "./convolution";
import { HeadsView } from "./heads";
import { MechanismView } from "./mechanism";
import { ImageView } from "./image";
import { LongView } from "./long";
import { MixedView } from "./mixed";
import { TrainingView } from "./training";
import { TokensView } from "./tokens";
import { StoryView } from "../story";

export interface ViewProps {
  payload: Payload<any>;
  host: Host;
}

export const views: Record<string, (props: ViewProps) => VNode> = {
  claims: ClaimsView,
  compare: CompareView,
  convolution: ConvolutionView,
  heads: HeadsView,
  mechanism: MechanismView,
  mixed: MixedView,
  image: ImageView,
  story: StoryView,
  long: LongView,
  tokens: TokensView,
  training: TrainingView,
};
