// MindIE: POST /, which is TGI's unless the server has option.dialect=mindie.

import { onlyModel } from "./common.js";
import { NAMES, readTgi, TGI_OWN, tgiBody } from "./tgi.js";

export default {
  id: "mindie",
  name: "MindIE",
  chats: false,
  prompts: true,
  path: (request) => `/${onlyModel(request)}`,
  names: NAMES,
  own: TGI_OWN,
  note: (server) => (server.dialect === "mindie" ? "" : `This server answers POST / as ${server.dialect}: option.dialect=mindie gives MindIE's defaults and limits.`),
  body(request) {
    const { inputs, parameters } = tgiBody(request);
    const { top_n_tokens, ...others } = parameters;
    return { inputs, parameters: { ...others, return_full_text: others.return_full_text ?? false }, ...(request.stream ? { stream: true } : {}) };
  },
  read: readTgi,
};
