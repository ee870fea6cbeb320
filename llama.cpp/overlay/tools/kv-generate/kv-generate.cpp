// Greedy generation from a file of prompts, freely or along given tokens: what a cache type does to the text that comes out.
//
// The most probable tokens along a given text part from it exactly where free greedy generation does, and the positions behind
// that place are still comparable. Both modes decode one token at a time, as a user's generation does.

#include "arg.h"
#include "common.h"
#include "json.h"
#include "llama.h"
#include "log.h"

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

static const char * USAGE =
    "\n"
    "example:\n"
    "\n"
    "  llama-kv-generate -m model.gguf -f prompts.jsonl -c 1024 -ctk turbo3 -ctv turbo3 -fa on --ignore-eos -lv 4\n"
    "\n"
    "-f names a file of JSON lines of two kinds:\n"
    "\n"
    "  {\"text\": NAME, \"content\": STRING}                  a text that the prompts below it cut from\n"
    "  {\"id\": STRING, \"prompt\": PIECES, \"n_predict\": N}   generates N tokens\n"
    "  {\"id\": STRING, \"prompt\": PIECES, \"reference\": R}   goes along R: token ids, or a string that continues the prompt's last piece\n"
    "\n"
    "PIECES is a list of strings and of {\"of\": NAME, \"from\": A, \"to\": B}, the tokens A to B-1 of a text.\n"
    "\n"
    "stdout gets one JSON line for each prompt:\n"
    "\n"
    "  id, n_prompt   tokens of the prompt\n"
    "  n_reused       of these, taken over from the prompt before\n"
    "  tokens, text   the most probable token at each position\n"
    "  reference      the tokens that it went along: R, or `tokens` itself\n"
    "  logprobs       of each token of `reference`, in nats\n"
    "\n"
    "With --ignore-eos, tokens that end a generation are never the most probable ones; without, generation ends behind one.\n"
    "\n"
    "exit: 0 done, 1 could not be run, 2 usage, or a prompt that cannot be used\n";

namespace {

// a prompt, or a line of the file, that cannot be used
struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct request {
    std::string              id;
    std::vector<llama_token> prompt;
    std::vector<llama_token> reference; // empty: generate freely
    int                      n_predict = 0;
};

struct answer {
    size_t                   n_reused = 0;
    std::vector<llama_token> tokens;
    std::vector<double>      logprobs; // of the reference, or else of tokens
};

using texts = std::map<std::string, std::vector<llama_token>>;

} // namespace

//
// the file of prompts
//

static void check_keys(const common_json & line, const std::set<std::string> & known) {
    for (const auto & [key, value] : line.items()) {
        GGML_UNUSED(value);
        if (!known.count(key)) {
            throw bad_input("unknown key '" + key + "'");
        }
    }
}

static std::vector<llama_token> cut(const common_json & piece, const texts & all) {
    check_keys(piece, { "of", "from", "to" });
    const std::string name = piece.at("of");
    const auto it = all.find(name);
    if (it == all.end()) {
        throw bad_input("no line above has a text '" + name + "'");
    }
    const int from = piece.at("from").get<int>();
    const int to   = piece.at("to").get<int>();
    if (from < 0 || to < from) {
        throw bad_input("tokens " + std::to_string(from) + " to " + std::to_string(to) + " are no range");
    }
    if (to > (int) it->second.size()) {
        throw bad_input("the text '" + name + "' has only " + std::to_string(it->second.size()) + " tokens, and " + std::to_string(to) + " are asked for");
    }
    return { it->second.begin() + from, it->second.begin() + to };
}

// Token ids, or the rest of the last piece tokenised together with the string: a tokeniser may join them. Then the piece in the
// prompt, which starts at first, loses its end.
static void set_reference(request & req, const common_json & reference, const std::string & last, size_t first, const llama_vocab * vocab) {
    if (reference.is_array()) {
        for (size_t i = 0; i < reference.size(); ++i) {
            const int id = reference.at(i).get<int>();
            if (id < 0 || id >= llama_vocab_n_tokens(vocab)) {
                throw bad_input("the vocabulary has no token " + std::to_string(id));
            }
            req.reference.push_back(id);
        }
    } else {
        if (last.empty()) {
            throw bad_input("a string as 'reference' needs a string as the prompt's last piece");
        }
        const auto joint = common_tokenize(vocab, last + reference.get<std::string>(), false);
        size_t n = 0;
        while (first + n < req.prompt.size() && n < joint.size() && req.prompt[first + n] == joint[n]) {
            n++;
        }
        req.prompt.resize(first + n);
        req.reference.assign(joint.begin() + n, joint.end());
    }
    if (req.reference.empty()) {
        throw bad_input("'reference' has no token");
    }
}

static request parse_request(const common_json & line, const texts & all, const llama_vocab * vocab) {
    check_keys(line, { "id", "prompt", "n_predict", "reference" });
    request req;
    req.id = line.at("id").get<std::string>();
    if (llama_vocab_get_add_bos(vocab)) {
        req.prompt.push_back(llama_vocab_bos(vocab));
    }
    const common_json & pieces = line.at("prompt");
    if (!pieces.is_array()) {
        throw bad_input("'prompt' is no list of pieces");
    }
    std::string last;
    size_t first = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const common_json & piece = pieces.at(i);
        last  = piece.is_string() ? piece.get<std::string>() : "";
        first = req.prompt.size();
        const auto tokens = piece.is_string() ? common_tokenize(vocab, last, false) : cut(piece, all);
        req.prompt.insert(req.prompt.end(), tokens.begin(), tokens.end());
    }
    if (line.contains("reference") == line.contains("n_predict")) {
        throw bad_input("either 'n_predict' or 'reference' is needed");
    }
    if (line.contains("reference")) {
        set_reference(req, line.at("reference"), last, first, vocab);
        req.n_predict = (int) req.reference.size();
    } else {
        req.n_predict = line.at("n_predict").get<int>();
    }
    if (req.n_predict < 1) {
        throw bad_input("'n_predict' is below 1");
    }
    if (req.prompt.empty()) {
        throw bad_input("the prompt has no token");
    }
    return req;
}

static std::vector<request> parse_file(const std::string & content, const llama_vocab * vocab) {
    std::vector<request> res;
    texts all;
    std::istringstream lines(content);
    std::string text;
    for (int number = 1; std::getline(lines, text); ++number) {
        if (text.empty()) {
            continue;
        }
        try {
            const common_json line = common_json::parse(text);
            if (line.contains("text")) {
                check_keys(line, { "text", "content" });
                all[line.at("text").get<std::string>()] = common_tokenize(vocab, line.at("content").get<std::string>(), false);
            } else {
                res.push_back(parse_request(line, all, vocab));
            }
        } catch (const std::exception & err) {
            throw bad_input("line " + std::to_string(number) + ": " + err.what());
        }
    }
    if (res.empty()) {
        throw bad_input("the file has no prompt");
    }
    return res;
}

//
// generation
//

namespace {

class generator {
  public:
    generator(llama_context * ctx, bool ignore_eos) : ctx(ctx), mem(llama_get_memory(ctx)), vocab(llama_model_get_vocab(llama_get_model(ctx))), ignore_eos(ignore_eos) {}

    answer run(const request & req) {
        answer res;
        res.n_reused = keep(req.prompt);
        std::vector<llama_token> rest(req.prompt.begin() + res.n_reused, req.prompt.end());
        for (int i = 0;; ++i) {
            const float * logits = decode(rest);
            const llama_token top = most_probable(logits);
            const llama_token next = req.reference.empty() ? top : req.reference[i];
            res.tokens.push_back(top);
            res.logprobs.push_back(logprob(logits, next));
            if (i + 1 == req.n_predict || (req.reference.empty() && llama_vocab_is_eog(vocab, top))) {
                return res;
            }
            rest = { next };
        }
    }

  private:
    // Leaves in the cache what the prompt begins with, all but its last token, which has to be computed. Returns how much.
    size_t keep(const std::vector<llama_token> & prompt) {
        size_t n = 0;
        while (n < cached.size() && n + 1 < prompt.size() && cached[n] == prompt[n]) {
            n++;
        }
        // a cache of a sliding window may have dropped what this prompt has to see
        const llama_pos n_swa = llama_model_n_swa(llama_get_model(ctx));
        const bool whole = llama_memory_seq_pos_min(mem, 0) <= std::max<llama_pos>(0, (llama_pos) n - n_swa);
        if (n == 0 || !whole || !llama_memory_seq_rm(mem, 0, (llama_pos) n, -1)) {
            llama_memory_clear(mem, true);
            n = 0;
        }
        cached.resize(n);
        return n;
    }

    // Appends tokens to the cache; the logits behind the last one.
    const float * decode(std::vector<llama_token> & tokens) {
        const size_t n_batch = llama_n_batch(ctx);
        for (size_t i = 0; i < tokens.size(); i += n_batch) {
            const size_t n = std::min(n_batch, tokens.size() - i);
            const int32_t rc = llama_decode(ctx, llama_batch_get_one(tokens.data() + i, (int32_t) n));
            if (rc != 0) {
                throw std::runtime_error("the model could not be run (llama_decode: " + std::to_string(rc) + ")");
            }
        }
        cached.insert(cached.end(), tokens.begin(), tokens.end());
        return llama_get_logits_ith(ctx, -1);
    }

    llama_token most_probable(const float * logits) const {
        llama_token best = LLAMA_TOKEN_NULL;
        for (llama_token id = 0; id < llama_vocab_n_tokens(vocab); ++id) {
            if ((best == LLAMA_TOKEN_NULL || logits[id] > logits[best]) && !(ignore_eos && llama_vocab_is_eog(vocab, id))) {
                best = id;
            }
        }
        return best;
    }

    double logprob(const float * logits, llama_token id) const {
        const int n = llama_vocab_n_tokens(vocab);
        const float max = *std::max_element(logits, logits + n);
        double sum = 0.0;
        for (int i = 0; i < n; ++i) {
            sum += std::exp((double) logits[i] - max);
        }
        const double res = logits[id] - max - std::log(sum);
        if (!std::isfinite(res)) {
            throw std::runtime_error("the model gives logits that are not finite");
        }
        return res;
    }

    llama_context *     ctx;
    llama_memory_t      mem;
    const llama_vocab * vocab;
    bool                ignore_eos;

    std::vector<llama_token> cached; // tokens in the cache, in their order
};

} // namespace

// One write for a line: other output goes to the same stream.
static void print(const request & req, const answer & found, const llama_vocab * vocab) {
    common_json logprobs = common_json::array();
    for (const double value : found.logprobs) {
        logprobs.push_back(std::round(value*1e6)/1e6);
    }
    const common_json line = {
        { "id",        req.id },
        { "n_prompt",  req.prompt.size() },
        { "n_reused",  found.n_reused },
        { "tokens",    found.tokens },
        { "text",      common_detokenize(vocab, found.tokens) },
        { "reference", req.reference.empty() ? found.tokens : req.reference },
        { "logprobs",  logprobs },
    };
    const std::string text = line.dump_safe() + "\n";
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
}

static void run(common_params & params) {
    auto init = common_init_from_params(params);
    llama_context * ctx = init->context();
    if (ctx == nullptr) {
        throw std::runtime_error("no context could be made for the model " + params.model.path);
    }
    const llama_model * model = init->model();
    if (llama_model_has_encoder(model) || !llama_get_memory(ctx)) {
        throw std::runtime_error("the model is no decoder with a cache: there is nothing to generate");
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);

    const auto requests = parse_file(params.prompt, vocab);
    for (const auto & req : requests) {
        const size_t need = req.prompt.size() + req.n_predict;
        if (need > llama_n_ctx_seq(ctx)) {
            throw bad_input("prompt '" + req.id + "' needs " + std::to_string(need) + " tokens of context, and there are " + std::to_string(llama_n_ctx_seq(ctx)) + ": use a larger -c");
        }
    }
    generator gen(ctx, params.sampling.ignore_eos);
    for (const auto & req : requests) {
        print(req, gen.run(req), vocab);
    }
}

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");

    common_params params;
    params.escape     = false; // of the prompt, which is JSON
    params.warmup     = false;
    params.n_parallel = 1;

    common_init();

    if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_COMMON, [](int, char **) { printf("%s", USAGE); })) {
        return 2;
    }
    if (params.prompt.empty()) {
        fprintf(stderr, "error: no file of prompts (-f), or it is empty\n");
        return 2;
    }

    llama_backend_init();
    llama_numa_init(params.numa);

    int rc = 0;
    try {
        run(params);
    } catch (const bad_input & err) {
        fprintf(stderr, "error: %s\n", err.what());
        rc = 2;
    } catch (const std::exception & err) {
        fprintf(stderr, "error: %s\n", err.what());
        rc = 1;
    }
    llama_backend_free();
    return rc;
}
