import { render } from "preact";
import { App } from "./app";
import { language } from "./i18n";
import { start } from "./live";
import { applyTheme, theme } from "./theme";
import "./style.css";

const setLanguage = () => (document.documentElement.lang = language.get());
applyTheme();
setLanguage();
theme.subscribe(applyTheme);
language.subscribe(setLanguage);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
start();
render(<App />, document.getElementById("app")!);
