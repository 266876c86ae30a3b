// The APIs. Each module knows one: its route, its names of parameters, its bodies and how to read its answers.
//
// The OpenAPI document says which parameters a body may have, and within which bounds. `names` translates the names that
// all APIs share; `own` lists fields that the page sets itself, or that need more than one value.
// `chats`, `prompts`, `tools` and `embeds` say what a route is for.
// `read(record)` returns {text, tokens, finish, prompt, generated, error, calls, reasoning}, all optional.

import alephAlpha from "./aleph_alpha.js";
import embeddings from "./embeddings.js";
import lmi from "./lmi.js";
import mindie from "./mindie.js";
import openaiChat from "./openai_chat.js";
import openaiCompletions from "./openai_completions.js";
import openaiResponses from "./openai_responses.js";
import tgi from "./tgi.js";

export const DIALECTS = [lmi, tgi, mindie, openaiChat, openaiCompletions, openaiResponses, alephAlpha, embeddings];
