// preact and htm under the names that all views use.
export { html } from "htm/preact";
export { Fragment, createContext, render } from "preact";
export type { ComponentChildren, RefObject, VNode } from "preact";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
