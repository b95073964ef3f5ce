// Every view by its name in payloads.

import type { VNode } from "../core/html";
import type { Host } from "../core/host";
import type { Payload } from "../core/payload";
import { HeadsView } from "./heads";

export interface ViewProps {
  payload: Payload<any>;
  host: Host;
}

export const views: Record<string, (props: ViewProps) => VNode> = {
  heads: HeadsView,
};
