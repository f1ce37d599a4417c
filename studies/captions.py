"""The words of the tables: captions, columns, rows, models and data sets."""

from __future__ import annotations

from collections.abc import Mapping

CAPTIONS = {
    "certainty-qwen": (
        "Each row is a measure of uncertainty. The prompt shows the two paragraphs nearest to the "
        "question, from six articles that we did not use to choose the default. The default "
        "measure, the mean of the three greatest entropies, has the highest AUROC. Intervals "
        "allow for questions about the same paragraph."
    ),
    "certaintyhotpot-qwen": (
        "Each row is a measure of uncertainty. The prompt shows five passages, two of which are "
        "needed. Measures that average over all tokens are not shown to find wrong answers here."
    ),
    "certaintyasked-qwen": (
        "Each row is a measure of uncertainty. The first two come from the answer itself. The "
        "others ask or sample the model again; they cost calls, and are not shown to find wrong "
        "answers better."
    ),
    "certaintytraces-llama": (
        "Others asked Llama-3.1-8B-Instruct five hundred questions of each data set without "
        "passages (s-nlp/AdaRAGUE), and recorded the perplexity of each answer. It finds wrong "
        "answers in both data sets."
    ),
    "certainty2wiki-qwen": (
        "Each row is a measure of uncertainty. The prompt shows five passages. The default "
        "measure, the mean of the three greatest entropies, hardly finds wrong answers, and the "
        "others are not shown to."
    ),
    "certainty-qwen.promise": (
        "Each row is a limit for the share of wrong answers among the shown ones. "
        "`calibrate_abstention` chose a threshold on a random half of the questions, and we "
        "counted on the other half; cells are means of two hundred such halves. Questions about "
        "the same paragraph were in the same half. The guarantee has a confidence of 95 % and is "
        "for all questions of this kind: the other half is only a sample, which can exceed the "
        "limit by chance. At the lowest limit almost no answer is shown."
    ),
    "understanding-qwen": (
        "Each row is a score that should be higher for wrong answers. The prompt shows three "
        "passages. The first two scores need no further call, and no other score is shown to do "
        "better for plain RAG's answers."
    ),
    "understanding-demo": (
        "Each row is a score that should be higher for wrong answers. DSE and the question "
        "whether the answer is right tell nothing with this model."
    ),
    "understanding-smollm2": (
        "Each row is a score that should be higher for wrong answers. So few questions do not "
        "show that any score finds wrong answers of plain RAG."
    ),
    "understandingjudged-qwen": (
        "Each row is a score that should be higher for wrong answers. For the last row, Qwen also "
        "decides which answers mean the same, as in the paper's appendix B.2; the calls for this "
        "are not counted. DSE is not shown to find wrong answers in either way."
    ),
    "dense-world.Accuracy by DSE": (
        "Each row is a range of DSE. Contexts with a low DSE give more right answers."
    ),
    "dense-readers": (
        "Each cell is the AUROC of a score: the probability that it is higher for a wrong answer "
        "than for a right one (one half is chance). The entropy of plain RAG's answer works with "
        "both models, DSE only for Qwen's answers to DENSE's own prompt. The questions are from "
        "SQuAD 2.0."
    ),
    "dense-world.Claims": (
        "Each row is a claim of the paper, with what we measured on two hundred questions."
    ),
    "refiningdev-demo": (
        "Each row is a system. Plain RAG shows the three nearest of ten passages. The refiner "
        "begins with these three passages (its default is five) and replaces some. *Uncertain "
        "questions* are those whose first context had a DSE above the threshold. The refiner is "
        "not shown to add right answers."
    ),
    "refiningdev-qwen": (
        "Each row is a system. *Uncertain questions* are those whose first context had a DSE "
        "above the threshold; for Qwen these are only six. The refiner gives as many right "
        "answers as plain RAG."
    ),
    "rewriting-qwen": (
        "Each row is a way to search for a question with slips. Of what `MultiQueryRetriever` "
        "finds, the prompt shows the first three passages. No way to rewrite is shown to answer "
        "better than plain RAG."
    ),
    "rewriting-demo": (
        "Each row is a way to search for a question with slips. Only the clean question is shown "
        "to give more right answers."
    ),
    "rewriting-smollm2": (
        "Each row is a way to search for a question with slips. So few questions show no difference."
    ),
    "prompts-qwen": (
        "Each row is a prompt for the answer, over the same passages. The prompt of DynQR's paper "
        "asks for one entity. It gives fewer right answers than the prompt of plain RAG, which is "
        "our default."
    ),
    "prompts-demo": (
        "Each row is a prompt for the answer, over the same passages. The prompt of DENSE-RAG's "
        "paper gives fewer right answers."
    ),
    "dynqr-world.Modes": (
        "Each row is a way to rewrite. DynQR rewrites a third of the questions and answers as "
        "well as rewriting every question."
    ),
    "dynqr-world.By kind of question": (
        "Each row is a kind of question. DynQR helps with under-specified questions, and is not "
        "shown to help with others."
    ),
    "dynqr-world.Claims": (
        "Each row is a claim of the paper, with what we measured on three hundred questions."
    ),
    "compressiondev-qwen": (
        "Each row is a choice of passages for the same final prompt. Nothing was chosen on these "
        "questions. EDC² is better than the filter, and is not shown to be better than plain RAG."
    ),
    "compressionprices-qwen": (
        "Each row is a way to choose passages. *EDC² with its defaults* is the component, and "
        "*one call for each passage* is the same choice made by the study. We measured how likely "
        "the reference answer is after the final prompt, which needs no generated answer. No "
        "cheaper way keeps as many gold passages as the default. So few questions show no "
        "difference between these ways in the likelihood."
    ),
    "compressionpaper-qwen": (
        "Each row is a choice of passages. With the paper's prompt most contexts come back as "
        "they were, so the right answers are those of plain RAG."
    ),
    "compression20-qwen": (
        "Each row is a choice of passages; EDC² keeps six. The questions are some of those on "
        "which we chose the default. No difference is shown between EDC², the filter and plain "
        "RAG."
    ),
    "compression2wiki-qwen": (
        "Each row is a choice of passages. Even a perfect selection is not shown to help on these questions."
    ),
    "compressionsquad-qwen": (
        "Each row is a choice among the ten paragraphs that the search found. Plain RAG answers "
        "as well as with the gold passages alone, so a selection has nothing to gain."
    ),
    "compression5-qwen": ("Each row is a choice among five passages. No difference is shown."),
    "compressionrepeats-qwen": (
        "Each row is a choice of passages. A repeat is an excerpt of another passage; EDC² "
        "removes it before it asks the model. The filter keeps repeats, and so loses gold "
        "passages."
    ),
    "compressionrepeatsnew-qwen": (
        "These are the questions that follow; the rows are as above. EDC² is better than the "
        "filter here, too."
    ),
    "compressiondev-demo": (
        "Each row is a choice among ten passages. A perfect selection helps this model, but EDC² "
        "does not find it."
    ),
    "compressionrepeats-demo": (
        "Each row is a choice among five passages and five that repeat them. No difference "
        "between EDC² and the filter is shown."
    ),
    "compressiondev-smollm2": (
        "Each row is a choice among ten passages. A perfect selection helps this model, but EDC² "
        "does not find it."
    ),
    "compression-qwen": (
        "Each row is a part that shortens the context. Parts with a setting for it keep three "
        "passages, or half of the sentences. EDC² with its defaults gave the most right answers "
        "on these questions, so we chose it as the default."
    ),
    "edc2-elsewhere": (
        "Each row is a study. The columns give the right answers with EDC² minus those of plain "
        "RAG, and minus those of the filter. Above zero, EDC² is better. The lead over the filter "
        "is shown only where passages repeat others."
    ),
    "gatescores-qwen.scores": (
        "Each row after the first two is a score of the first answer, which may not abstain. The "
        "mean of the three greatest entropies is the best, and the paper's score, the mean "
        "entropy of the first eight tokens, is the worst."
    ),
    "gates-qwen": (
        "Each row is a rule that decides whether to search. We chose no default on these "
        "articles, but had seen earlier results on them. Only rules with abstentions, or with a "
        "low threshold, answer about as well as always searching."
    ),
    "gates-demo": (
        "Each row is a rule that decides whether to search. The default is better than searching "
        "at random equally often, and answers as well as always searching."
    ),
    "gates-demo-seed8": (
        "Each row is a rule that decides whether to search. With fewer questions, the lead of "
        "L-RAG over searching at random is not shown."
    ),
    "gates-smollm2": (
        "Each row is a rule that decides whether to search. The model rarely abstains and is "
        "nearly always uncertain, so no rule saves searches without a loss."
    ),
    "gatesnew-qwen": (
        "Each row is a rule that decides whether to search. All rows but the last two come from "
        "stored answers; *L-RAG, the component itself* ran in full. Its rule is to search if "
        "entropy is above 0.5, or after an abstention. It is better than searching at random "
        "equally often, and answers about as well as always searching."
    ),
    "lazy-world.Table I": (
        "Each row is a mode of the paper's Table I. The last three columns have the paper's "
        "results with Phi-2 on SQuAD 2.0. In the closed world, L-RAG answers as well as always "
        "searching, with a third fewer searches."
    ),
    "lazy-world.Claims": (
        "Each row is a claim, with what we measured on three hundred questions. The last claim is "
        "about our code, on fifty questions."
    ),
    "lazy-latency": (
        "Each row is a share of questions that search, as in the paper's Table III, with 50 ms "
        "for the gate. The second column has the duration of a search from which on L-RAG saves "
        "time. The others have the milliseconds that a question saves if a search takes so long."
    ),
    "traces": (
        "The data (s-nlp/AdaRAGUE, arXiv 2501.12835) hold answers to five hundred questions of "
        "each set, without a search and after one search, which can miss. Uncertainty finds wrong "
        "answers. Searching for the most uncertain half is not shown to be better than searching "
        "for a random half."
    ),
    "worth-qwen": (
        "Each row is a measure of what passages are worth. Whether a reference answer occurs in "
        "them follows the worth best. Answers are compared by their words, so the soft and the "
        "hard kernel give the same values."
    ),
    "worthdev-demo": (
        "Each row is a measure of what passages are worth. ΔSePer follows the worth with this "
        "model, too, and the judge in words does not."
    ),
    "worthdev-smollm2": (
        "Each row is a measure of what passages are worth. The long answers of this model never "
        "equal a reference answer, so ΔSePer is near zero."
    ),
    "seper-weights.Error of the belief": (
        "Each row is a way to weigh ten samples. Each cell has the root mean square error and the "
        "mean error of SePer over four hundred random models, whose true belief is a sum over all "
        "their answers. Smaller is better. The columns go from models that are almost certain "
        "(small α, the concentration of the next token's distribution) to models that are "
        "uncertain."
    ),
    "levels.intervals": (
        "Each row is a kind of difference between two systems on n questions. 95 % or more is "
        "right. Only costs fall clearly short, in the smallest samples."
    ),
    "levels.shares": (
        "Each row is a number of questions, and each column a true share of right answers. 95 % "
        "on average is right. Shares very close to one are contained less often."
    ),
    "levels.skewed": (
        "Each row is a distribution of scores or costs on n questions. 95 % or more is right. The "
        "last row shows why surerag refuses requirements on means of costs with rare large "
        "values."
    ),
    "levels.groups": (
        "Each row is a quantity, with five questions a document. 95 % or more is right. "
        "*Documents ignored* treats all questions as independent, and its intervals are mostly "
        "too narrow."
    ),
    "levels.requirements": (
        "Each row is a requirement of `surerag compare`. *Not met*: the truth just misses the "
        "requirement, and at most 5 % of the samples should pass. *Met*: more is better, so the "
        "table shows how many questions a requirement needs."
    ),
    "levels.power": (
        "Each row is a true difference between two systems. surerag recommends a number of "
        "questions for each number of systems that are compared with the baseline. 80 % is right."
    ),
    "levels.abstention": (
        "Each row is a limit for wrong answers among the shown ones, and a model whose "
        "uncertainty is lower by some standard deviations (σ) where it is right. Each of 250 "
        "samples has 250 questions. Up to 5 % may exceed the limit. The last two columns say in "
        "how many samples any answer is shown, and how many answers are shown."
    ),
    "levels.thresholds": (
        "The limit is a loss of two points of right answers. Each row says for how many questions "
        "a search repairs or spoils the answer, and by how many standard deviations (σ) the "
        "uncertainty tells so. Each of 250 samples has 250 questions. Up to 5 % may exceed the "
        "limit. More saved searches are better."
    ),
}
"""What stands above a table: what a row is, and what follows from the table."""

COLUMNS: Mapping[str, tuple[str, str]] = {
    "system": ("", ""),
    "n": ("questions", "number of questions"),
    "right": (
        "right, %",
        "answers that contain a reference answer; higher is better, and long answers gain",
    ),
    "difference": (
        "difference, points",
        "right answers minus plain RAG's (for L-RAG: minus those of always searching); above zero is better",
    ),
    "to_show": (
        "questions needed",
        "questions that would show such a difference in four of five studies, if the interval contains zero",
    ),
    "exact": ("exact, %", "answers that equal a reference answer; higher is better"),
    "reference": (
        "log-probability of the reference",
        "nats per token; the less negative, the more likely is the reference answer",
    ),
    "reference_difference": (
        "log-probability minus plain RAG's",
        "nats per token; above zero, the reference answer is more likely than with plain RAG",
    ),
    "reference_ahead": (
        "EDC²'s log-probability minus this row's",
        "nats per token, of EDC² with its defaults; above zero, EDC² is better than the row",
    ),
    "gold_kept": ("gold passages kept, %", "gold passages that the row keeps; higher is better"),
    "gold_difference": (
        "gold passages kept, difference, points",
        "gold passages kept minus those that one call for each passage keeps; above zero is better",
    ),
    "all_gold_shown": ("all gold passages kept, %", "questions of which the row keeps all gold passages"),
    "kept": ("passages kept", "passages in the last prompt, mean of a question"),
    "words": ("words", "words of an answer, mean"),
    "ahead": (
        "EDC² minus this row, points",
        "right answers of EDC² with its defaults minus those of the row; above zero, EDC² is better",
    ),
    "gate_ahead": (
        "gate minus random, points",
        "right answers of the named gate minus those of this row, which searches at random equally often",
    ),
    "auroc": (
        "AUROC",
        "probability that a wrong answer has a higher uncertainty than a right one; 0.5 is chance",
    ),
    "own_auroc": (
        "AUROC, own answers",
        "the AUROC for the answers that the score itself generated, instead of plain RAG's answers",
    ),
    "auroc_ahead": ("AUROC minus the paper's", "AUROC minus that of the paper's score; above zero is better"),
    "right at 80%": (
        "right, if 80 % search, %",
        "right answers if the 80 % least certain questions search; higher is better",
    ),
    "right at 70%": ("right, if 70 % search, %", "right answers if the 70 % least certain questions search"),
    "right at 60%": ("right, if 60 % search, %", "right answers if the 60 % least certain questions search"),
    "60% difference": (
        "minus always searching, if 60 % search, points",
        "right answers minus those of always searching; closer to zero, or above, is better",
    ),
    "60% ahead": (
        "minus the paper's score, if 60 % search, points",
        "right answers minus those with the paper's score; above zero is better",
    ),
    "chosen_threshold": (
        "calibrated τ",
        "threshold that loses at most 2 points on a random half of the paragraphs (median of 200 halves)",
    ),
    "chosen_searches": (
        "searches with calibrated τ",
        "share of the questions of the other half that search with the calibrated τ; lower is cheaper",
    ),
    "chosen_difference": (
        "difference with calibrated τ, points",
        "right answers on the other half with the calibrated τ, minus those of always searching",
    ),
    "surest 50%": (
        "right among the most certain half, %",
        "right answers among the 50 % with the lowest uncertainty; higher is better",
    ),
    "surest 70%": (
        "right among the most certain 70 %, %",
        "right answers among the 70 % with the lowest uncertainty",
    ),
    "surest 90%": (
        "right among the most certain 90 %, %",
        "right answers among the 90 % with the lowest uncertainty",
    ),
    "answered": ("answers shown, %", "answers that the policy shows; the others become abstentions"),
    "wrong among them": ("wrong among the shown, %", "wrong answers among those shown; lower is better"),
    "broken": (
        "limit exceeded, % of 200 halves",
        "halves on which more of the shown answers are wrong than the limit allows; lower is better",
    ),
    "r": (
        "Pearson's r",
        "correlation of the measure with the known worth of the passages; 1 is perfect",
    ),
    "gold": ("both gold passages", "mean value of the measure where the worth is 1"),
    "half": ("one gold passage", "mean value of the measure where the worth is ½"),
    "distractors": ("two distractors", "mean value of the measure where the worth is 0"),
    "hit": ("gold passage found, %", "questions for which the search finds the gold passage"),
    "context_share": ("context kept, %", "text of the passages that is left in the last prompt"),
    "fell_back": (
        "originals returned, %",
        "contexts that come back as they were, because nothing was extracted",
    ),
    "gold_shown": ("gold passages shown, %", "gold passages that are in the last prompt; higher is better"),
    "searches": ("searches", "searches of a question, mean"),
    "calls": ("calls", "model calls of a question, mean"),
    "further calls": ("further calls", "model calls beyond plain RAG's, mean of a question"),
    "further tokens": ("further tokens", "tokens beyond plain RAG's, mean of a question"),
    "tokens": ("tokens", "prompt and generated tokens of all calls of a question, mean"),
    "read": (
        "tokens with prefix cache",
        "tokens of all calls of a question, where a server processes a shared beginning of prompts once",
    ),
    "break_even_ms": (
        "break-even, ms",
        "L-RAG saves time where a search takes longer than this, if the gate takes 50 ms",
    ),
}
"""Columns of the tables of real readers, in their order: what stands above them, and what they mean."""

HEADS = {name: head for name, (head, _) in COLUMNS.items()}

ROWS = {
    "plain": "plain RAG",
    "plain 6": "plain RAG with 6 passages",
    "gold alone": "gold passages alone",
    "EmbeddingsFilter": "LangChain's `EmbeddingsFilter`",
    "LLMChainExtractor": "LangChain's `LLMChainExtractor`",
    "SentenceEmbeddingOptimizer": "LlamaIndex's `SentenceEmbeddingOptimizer`",
    "LLMRerank": "LlamaIndex's `LLMRerank`",
    "RePhraseQuery": "LangChain's `RePhraseQueryRetriever`",
    "MultiQuery": "LangChain's `MultiQueryRetriever`",
    "HyDE": "LlamaIndex's `HyDEQueryTransform`",
    "EDC² top 3 whole": "EDC² with its defaults",
    "EDC² top 6 whole": "EDC² with its defaults",
    "EDC² extract": 'EDC² with `variant="copy"`',
    "EDC² extract as in the paper": 'EDC² with `variant="paper"`',
    "EDC² answer": 'EDC² with `task="answer"`',
    "EDC² each": "one call for each passage",
    "EDC² together": "one call for all passages",
    "EDC² each in sight": "one call for each passage, which shows all passages",
    "EDC² nearest": "no call, the nearest passages",
    "clean question": "plain RAG with the clean question",
    "DynQR answering the rewrite": 'DynQR with `answer="rewrite"`',
    "rewritten always": "rewriting every question",
    "always": "always search",
    "never": "no passages",
    "summary": "never search, answer from the summary",
    "abstention": "search after an abstention",
    "lazy": "L-RAG, the component itself",
    "asks whether to search": "ask the model whether to search",
    "semantic entropy, τ = 0.3": "search if semantic entropy is above 0.3, or after an abstention",
    "mean_entropy": "mean entropy of all tokens",
    "first_8_mean_entropy": "mean entropy of the first 8 tokens",
    "greatest_entropy": "greatest entropy",
    "greatest_3_mean_entropy": "mean of the 3 greatest entropies",
    "greatest 3 of the first 8": "mean of the 3 greatest entropies of the first 8 tokens",
    "perplexity": "perplexity",
    "least_likely_token": "−log-probability of the least likely token",
    "negative_log_likelihood": "−log-probability of the answer",
    "are you sure?": "ask “Is your answer right?”",
    "a number in words": "ask for a number from 0 to 100",
    "disagreement of 5 samples": "disagreement of 5 samples with the answer",
    "entropy": "mean entropy of the answer",
    "log-perplexity": "log-perplexity of the answer",
    "doubt": "ask “Is this answer right?”",
    "semantic entropy": "semantic entropy of 5 samples",
    "DSE": "DSE, answers compared by their words",
    "DSE, the reader judges": "DSE, answers compared by the model",
    "LLM judge": "the model as a judge, in words",
    "hit": "a reference answer occurs in the passages",
    "ΔSePer": "ΔSePer with its defaults (10 samples)",
}
"""Rows whose names in the summaries are short, and what stands in the tables."""

READERS = {
    "demo": "the adapted SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "SmolLM2-135M-Instruct",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": "Qwen2.5-Coder-1.5B-Instruct",
}
SETS = {
    "squad": "SQuAD 2.0",
    "disfl": "Disfl-QA",
    "2wiki": "2WikiMultiHopQA",
    "hotpot": "HotpotQA",
    "hotpot-dev": "HotpotQA's development set",
    "hotpot-hard": "HotpotQA",
}
"""Models and data sets as the captions name them."""
