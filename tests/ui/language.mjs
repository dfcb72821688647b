// The languages at parity: the same keys and placeholders, nothing left untranslated, the right script; settings of a server included.
import { check, same } from "../server/serve.mjs";
import { en } from "../../web/src/lang/en.ts";
import { affects, settingHelp } from "../../web/src/lang/settings.ts";
import { zhHans } from "../../web/src/lang/zh-hans.ts";
import { zhHant } from "../../web/src/lang/zh-hant.ts";

const languages = { "zh-Hans": zhHans, "zh-Hant": zhHant };
const slots = (text) => [...text.matchAll(/\{(\w+)\}/g)].map((m) => m[1]).sort();
// Characters that only one of the two scripts has, of those that the page uses.
const onlyTraditional = /[這個們說會時間為與對話設記憶體檔預載關閉長開發現產運結請輸詞輪擬單點觀無從顯語視選擇應變優級權參數據標題鏈實現狀態佇]/u;
const onlySimplified = /[这个们说会时间为与对话设记忆体档预载关闭长开发现产运结请输词轮拟单点观无从显语视选择应变优级权参数据标题链实现状态]/u;
// Names and examples that are the same in all languages.
const shared = /^(list|tokens_per_s|method\..*|chat\.example\d|chat\.tools|.*_p)$/;

export function checkLanguages() {
  for (const [name, words] of Object.entries(languages)) {
    same(Object.keys(words), Object.keys(en), `${name}: the keys and their order`);
    for (const [key, text] of Object.entries(en)) {
      same(slots(words[key] ?? ""), slots(text), `${name}: placeholders of ${key}`);
      check(words[key]?.trim(), `${name}: ${key} is empty`);
      check(shared.test(key) || words[key] !== text, `${name}: ${key} is not translated: ${text}`);
    }
    const wrong = name === "zh-Hans" ? onlyTraditional : onlySimplified;
    for (const [key, text] of [...Object.entries(words), ...Object.entries(settingHelp[name])]) {
      // Characters of both lists belong to both scripts.
      const found = [...text].filter((c) => wrong.test(c) && !(onlyTraditional.test(c) && onlySimplified.test(c)));
      same(found, [], `${name}: characters of the other script in ${key}`);
    }
  }
}

export async function checkSettingWords(url) {
  const { settings } = await (await fetch(`${url}/api/models/nano/settings`)).json(), names = Object.keys(settings).sort();
  same(Object.keys(affects).sort(), names, "settings: what they affect");
  for (const name of Object.keys(languages)) same(Object.keys(settingHelp[name]).sort(), names, `settings in ${name}`);
}
