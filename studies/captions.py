"""The words of the tables: captions, columns, rows, models and data sets."""

from __future__ import annotations

from collections.abc import Mapping

CAPTIONS = {
    "certainty-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows the two paragraphs nearest to "
        "the question, from six articles that we did not use to choose the default. The default measure, "
        "the mean of the three greatest entropies, has the highest AUROC. The intervals take into account "
        "that several questions are about the same paragraph."
    ),
    "certaintyhotpot-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows five passages, two of which are "
        "needed to answer the question. There is no evidence that averages over all tokens find "
        "wrong answers on HotpotQA."
    ),
    "certaintyasked-qwen": (
        "Each row of the table is a measure of uncertainty. The mean of the three greatest entropies and the "
        "perplexity come from the answer itself. For the other measures of the table, we asked the model "
        "again or sampled further answers, which costs calls. There is no evidence that the further calls "
        "are better at finding wrong answers."
    ),
    "certaintytraces-llama": (
        "The authors of AdaRAGUE (s-nlp/AdaRAGUE) asked Llama-3.1-8B-Instruct five hundred questions of "
        "each data set without passages, and recorded the perplexity of each answer. The perplexity finds "
        "wrong answers in both data sets."
    ),
    "certainty2wiki-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows five passages. There is weak "
        "evidence that the default measure, the mean of the three greatest entropies, finds wrong answers. "
        "There is no evidence that the other measures of the table find wrong answers."
    ),
    "certainty-qwen.promise": (
        "Each row of the table is a limit for the share of wrong answers among the shown answers. "
        "`calibrate_abstention` chose a threshold on a random half of the questions, and we counted wrong "
        "answers on the other half. Each cell of the table is a mean over two hundred random splits of the "
        "questions into two halves. All questions about the same paragraph went to the same half. The "
        "guarantee has a confidence of 95 % and concerns all questions of the same kind. The half of the "
        "questions on which we counted wrong answers is only a sample, and a sample can exceed the limit by "
        "chance. At the lowest limit, the policy shows almost no answer."
    ),
    "understanding-qwen": (
        "Each row of the table is a score that should be higher for wrong answers. The prompt shows three "
        "passages. The entropy and the log-perplexity need no further call. There is no evidence that "
        "another score is better at finding wrong answers of plain RAG."
    ),
    "understanding-demo": (
        "Each row of the table is a score that should be higher for wrong answers. With the fine-tuned "
        "SmolLM2-135M, there is no evidence that DSE (DENSE-RAG's score) or the question “Is this answer "
        "right?” finds wrong answers."
    ),
    "understanding-smollm2": (
        "Each row of the table is a score that should be higher for wrong answers. With so few questions, "
        "there is no evidence that any score finds wrong answers of plain RAG."
    ),
    "understandingjudged-qwen": (
        "Each row of the table is a score that should be higher for wrong answers. In the last row, Qwen "
        "also decides which answers mean the same, as in appendix B.2 of the paper. The table does not count "
        "the calls with which Qwen decides which answers mean the same. There is no evidence that DSE, the "
        "score of DENSE-RAG, finds wrong answers, no matter whether words or Qwen decide which answers mean "
        "the same."
    ),
    "dense-world.Accuracy by DSE": (
        "Each row of the table is a range of DSE, the score of DENSE-RAG. Contexts with a low DSE give more "
        "right answers."
    ),
    "dense-readers": (
        "Each cell of the table is the AUROC of a score: the probability that the score is higher for a "
        "wrong answer than for a right answer (one half is chance). The entropy of plain RAG's answer finds "
        "wrong answers of both models. DSE finds wrong answers only among Qwen's answers to DENSE's own "
        "prompt. The questions are from SQuAD 2.0."
    ),
    "dense-world.Claims": (
        "Each row of the table is a claim of DENSE-RAG's paper, with our result on two hundred questions."
    ),
    "refiningdev-demo": (
        "Each row of the table is a system. Plain RAG shows the three nearest of ten passages. DENSE-RAG's "
        "refiner begins with the three nearest passages (the default is five), and replaces some of them. "
        "*Uncertain questions* are questions for which the passages before the refinement had a DSE above "
        "the threshold. There is no evidence that the refiner adds right answers."
    ),
    "refiningdev-qwen": (
        "Each row of the table is a system. *Uncertain questions* are questions for which the passages "
        "before the refinement had a DSE above the threshold. Qwen has only six uncertain questions. "
        "DENSE-RAG's refiner gives as many right answers as plain RAG."
    ),
    "rewriting-qwen": (
        "The questions contain slips of the tongue, except in the row *plain RAG with the clean question*. "
        "Each row of the table is a way to search. For `MultiQueryRetriever`, the prompt shows the first "
        "three of the passages that the retriever returns. There is no evidence that any way to rewrite the "
        "question gives more right answers than plain RAG."
    ),
    "rewriting-demo": (
        "The questions contain slips of the tongue, except in the row *plain RAG with the clean question*. "
        "Each row of the table is a way to search. The clean question gives more right answers than the "
        "question with slips. There is no evidence that any other row gives more right answers than plain "
        "RAG."
    ),
    "rewriting-smollm2": (
        "The questions contain slips of the tongue, except in the row *plain RAG with the clean question*. "
        "Each row of the table is a way to search. With so few questions, there is no evidence that the ways "
        "to search differ."
    ),
    "prompts-qwen": (
        "Each row of the table is a prompt for the answer, and all prompts show the same passages. The "
        "prompt of DynQR's paper, which asks for one entity, gives fewer right answers than the prompt of "
        "plain RAG, which is our default."
    ),
    "prompts-demo": (
        "Each row of the table is a prompt for the answer, and all prompts show the same passages. The "
        "prompt of DENSE-RAG's paper gives fewer right answers than the prompt of plain RAG."
    ),
    "dynqr-world.Modes": (
        "Each row of the table is a way to rewrite. DynQR rewrites a third of the questions, and gives as "
        "many right answers as a system that rewrites every question."
    ),
    "dynqr-world.By kind of question": (
        "Each row of the table is a kind of question. DynQR helps with under-specified questions. There is "
        "no evidence that DynQR helps with two-hop or single-hop questions."
    ),
    "dynqr-world.Claims": (
        "Each row of the table is a claim of DynQR's paper, with our result on three hundred questions."
    ),
    "compressiondev-qwen": (
        "Each row of the table is a way to choose the passages of the final prompt. We did not use the "
        "questions of this table to choose a default. EDC² gives more right answers than LangChain's "
        "`EmbeddingsFilter`. There is no evidence that EDC² gives more right answers than plain RAG."
    ),
    "compressionprices-qwen": (
        "Each row of the table is a way to choose passages. The row *EDC² with its defaults* runs surerag's "
        "component. In the row *one call for each passage*, code of the study chooses passages by the same "
        "rule. We measured how likely the reference answer is after the final prompt, which does not require "
        "the model to generate an answer. No cheaper way keeps as many gold passages as the default. The "
        "reference answer is more likely with the gold passages alone than with EDC². All other intervals of "
        "differences in log-probability contain zero, because the questions are few."
    ),
    "compressionpaper-qwen": (
        "Each row of the table is a way to choose passages. With the paper's prompt, EDC² returns most "
        "contexts unchanged, and gives as many right answers as plain RAG."
    ),
    "compression20-qwen": (
        "Each row of the table is a way to choose passages. EDC² keeps six passages. We had used the "
        "questions of this table to choose the default. There is no evidence that EDC², LangChain's "
        "`EmbeddingsFilter` and plain RAG differ in right answers."
    ),
    "compression2wiki-qwen": (
        "Each row of the table is a way to choose passages. On these questions, there is no evidence that a "
        "selection of passages helps, not even that a perfect selection helps."
    ),
    "compressionsquad-qwen": (
        "Each row of the table is a way to choose among the ten paragraphs that the search returned. Plain "
        "RAG gives as many right answers as the gold passages alone, so a selection of passages cannot be "
        "expected to help."
    ),
    "compression5-qwen": (
        "Each row of the table is a way to choose among five passages. There is no evidence that the rows "
        "differ in right answers."
    ),
    "compressionrepeats-qwen": (
        "Each row of the table is a way to choose passages. A repeat is an excerpt of another passage. EDC² "
        "removes repeats before it asks the model about each passage. LangChain's `EmbeddingsFilter` keeps "
        "repeats, which take the places of gold passages."
    ),
    "compressionrepeatsnew-qwen": (
        "In the data set, these questions follow the questions of the table above. Each row of the table is "
        "a way to choose passages. On these questions, too, EDC² gives more right answers than LangChain's "
        "`EmbeddingsFilter`."
    ),
    "compressiondev-demo": (
        "Each row of the table is a way to choose among ten passages. With a perfect selection of passages, "
        "the fine-tuned SmolLM2-135M gives more right answers, but EDC² does not find the perfect selection."
    ),
    "compressionrepeats-demo": (
        "Each row of the table is a way to choose among five passages and five repeats of these passages. "
        "There is no evidence that EDC² and LangChain's `EmbeddingsFilter` differ in right answers."
    ),
    "compressiondev-smollm2": (
        "Each row of the table is a way to choose among ten passages. With a perfect selection of passages, "
        "SmolLM2-135M gives more right answers, but EDC² does not find the perfect selection."
    ),
    "compression-qwen": (
        "Each row of the table is a component that shortens the context. If a component has an option for "
        "the length of the context, we set the option to three passages, or to half of the sentences. Of the "
        'components, EDC² with `variant="whole"` gives the most right answers, so we chose `"whole"` as the '
        "default. The row *EDC² with its defaults* has this variant."
    ),
    "edc2-elsewhere": (
        "Each row of the table is a study. The last two columns have the right answers with EDC² minus the "
        "right answers of plain RAG, and minus the right answers of LangChain's `EmbeddingsFilter`. A "
        "difference above zero means that EDC² is better. For Qwen and passages that repeat other passages, "
        "EDC² is better than LangChain's `EmbeddingsFilter`. In the other rows, there is no evidence of a "
        "difference."
    ),
    "gatescores-qwen.scores": (
        "The first two rows of the table are systems. Each further row is a measure of the uncertainty of "
        "L-RAG's first answer. The prompt of the first answer does not ask the model to abstain. The mean of "
        "the three greatest entropies has the highest AUROC. The paper's score, the mean entropy of the "
        "first eight tokens, has the lowest AUROC."
    ),
    "gates-qwen": (
        "Each row of the table is a rule that decides whether to search. We did not use the articles of "
        "these questions to choose a default, but we had seen earlier results on the articles. Only rules "
        "that also search after an abstention, or rules that have a low threshold, give about as many right "
        "answers as always searching."
    ),
    "gates-demo": (
        "Each row of the table is a rule that decides whether to search. L-RAG's default rule searches if "
        "the entropy is above 0.5, or after an abstention. The default rule gives more right answers than a "
        "system that calls the retriever for equally many random questions. The default rule gives as many "
        "right answers as always searching."
    ),
    "gates-demo-seed8": (
        "Each row of the table is a rule that decides whether to search. The sample of questions is smaller "
        "than in the table above. The data do not show that L-RAG gives more right answers than a system "
        "that calls the retriever for equally many random questions."
    ),
    "gates-smollm2": (
        "Each row of the table is a rule that decides whether to search. The original SmolLM2-135M rarely "
        "abstains and is nearly always uncertain, so every rule that saves searches also gives fewer right "
        "answers."
    ),
    "gatesnew-qwen": (
        "Each row of the table is a rule that decides whether to search. For the row *L-RAG, the component "
        "itself*, we ran the whole component of surerag. For all other rules, we computed the result from "
        "stored answers. The component searches if the entropy is above 0.5, or after an abstention. The "
        "component gives more right answers than a system that calls the retriever for equally many random "
        "questions. The component gives about as many right answers as always searching."
    ),
    "lazy-world.Table I": (
        "Each row of the table is a system of the paper's Table I, with the paper's name in brackets. The "
        "last three columns have the paper's results with Phi-2 on SQuAD 2.0, and the columns before them "
        "have our results in the closed world. In the closed world, L-RAG gives as many right answers as "
        "always searching, with a third fewer searches."
    ),
    "lazy-world.Claims": (
        "Each row of the table is a claim, with our result on three hundred questions. The last claim is "
        "about our code, and we checked the last claim on fifty questions. L-RAG's rule (Eq. 4) takes the "
        "answer after a search if the entropy of the first answer is above τ, and otherwise the first answer."
    ),
    "lazy-latency": (
        "Each row of the table is a share of the questions for which L-RAG calls the retriever, as in the "
        "paper's Table III. The decision whether to search takes 50 ms. L-RAG saves time if a search takes "
        "longer than the break-even in the second column. Each further column is for one duration of a "
        "search, and has the mean number of milliseconds that L-RAG saves for a question."
    ),
    "traces": (
        "The recorded data (s-nlp/AdaRAGUE, arXiv 2501.12835) hold the answers of Llama-3.1-8B-Instruct to "
        "five hundred questions of each data set, without a search and after one search. A search can miss "
        "the right passage. The perplexity finds wrong answers. The data do not show that calling the "
        "retriever for the most uncertain half of the questions gives more right answers than calling the "
        "retriever for a random half."
    ),
    "worth-qwen": (
        "Each row of the table is a measure of how useful passages are. The measure that checks whether a "
        "reference answer occurs in the passages correlates most with the usefulness of the passages. "
        'Answers are compared by their words, so the options `kernel="soft"` (the default) and '
        '`kernel="hard"` give the same values.'
    ),
    "worthdev-demo": (
        "Each row of the table is a measure of how useful passages are. ΔSePer also correlates with the "
        "usefulness of the passages for the fine-tuned SmolLM2-135M, but there is no evidence that the "
        "model's own rating correlates."
    ),
    "worthdev-smollm2": (
        "Each row of the table is a measure of how useful passages are. The long answers of this model never "
        "equal a reference answer, so ΔSePer is near zero."
    ),
    "seper-weights.Error of the belief": (
        "Each row of the table is a way to weigh ten samples. Each cell of the table has the root mean "
        "square error and the mean error of SePer over four hundred random models. For each model, we "
        "computed the true probability of the right answer from all possible answers. Smaller errors are "
        "better. α is the parameter of the Dirichlet distribution from which we drew the probabilities of "
        "the next token. The larger α is, the more uncertain are the random models."
    ),
    "levels.intervals": (
        "Each row of the table is a kind of difference between two systems on n questions. Each value should "
        "be at least 95 %. In small samples, the intervals of costs are too narrow. No other interval is "
        "clearly too narrow."
    ),
    "levels.shares": (
        "Each row of the table is a number n of questions, and each column is a true share of right answers. "
        "The mean over all true shares should be at least 95 %. The intervals contain the true share less "
        "often if the true share is very close to one."
    ),
    "levels.skewed": (
        "Each row of the table is a distribution of scores or costs on n questions. Each value should be at "
        "least 95 %. The last row shows why surerag refuses a requirement on a mean cost: costs can have "
        "rare large values, and then the interval often misses the true mean."
    ),
    "levels.groups": (
        "Each row of the table is a statistic whose interval we check. Each sample has n questions, and each "
        "document has five questions. Each value should be at least 95 %. In the columns *questions treated "
        "as independent*, the interval ignores that questions share documents, and most intervals are too "
        "narrow."
    ),
    "levels.requirements": (
        "Each row of the table is a requirement of `surerag compare`, that is, a limit for a score or a cost "
        "of system *a*, sometimes compared with system *b*. Each sample has n questions. In the columns "
        "*true value at the limit*, the true value equals the limit, so at most 5 % of the samples should "
        "pass. In the columns *true value better than the limit*, as many samples as possible should pass. "
        "If a requirement ends with *in 98 % of questions*, the limit holds for each of at least 98 % of the "
        "questions. If a requirement ends with *capped at 61*, costs above 61 count as 61, and the limit "
        "holds for the mean of the capped costs. In the last four rows, the simulated number of tokens is "
        "usually about 1, and rarely 61. If the true value equals the limit, no requirement passes in "
        "clearly more than 5 % of the samples."
    ),
    "levels.power": (
        "Each row of the table is a true difference between two systems. The number of questions that "
        "surerag recommends depends on how many systems are compared with the baseline. A test should find "
        "the difference in about 80 % of the samples."
    ),
    "levels.abstention": (
        "Each row of the table is a limit for the share of wrong answers among the shown answers, together "
        "with a simulated model. The model's mean uncertainty differs between right and wrong answers by the "
        "given number of standard deviations (σ). Each of 250 samples has 250 questions. Up to 5 % of the "
        "samples may exceed the limit. A larger share of shown answers is better."
    ),
    "levels.thresholds": (
        "The chosen threshold may give at most two points fewer right answers than always searching. Each "
        "row of the table says for how many questions a search repairs a wrong first answer or spoils a "
        "right first answer. The mean uncertainty of repaired and of spoiled answers differs from the mean "
        "uncertainty of unchanged answers by the given number of standard deviations (σ). Each of 250 "
        "samples has 250 questions. Up to 5 % of the samples may exceed the limit of two points. A threshold "
        "is *certified* if `calibrate_threshold` guarantees the limit. Without a certified threshold, L-RAG "
        "always searches. A larger share of saved searches is better."
    ),
}
"""What stands above a table: what a row is, and what follows from the table."""

COLUMNS: Mapping[str, tuple[str, str]] = {
    "system": ("", ""),
    "n": ("questions", "number of questions"),
    "right": (
        "right, %",
        "share of answers that contain a reference answer; higher is better; long answers have an advantage",
    ),
    "difference": (
        "difference, points",
        (
            "right answers of the row minus right answers of plain RAG (on the page of L-RAG: minus right "
            "answers of always searching); above zero is better"
        ),
    ),
    "to_show": (
        "questions needed",
        (
            "if the interval contains zero: number of questions with which a study would find a difference "
            "of this size with a probability of 80 %"
        ),
    ),
    "exact": ("exact, %", "answers that equal a reference answer; higher is better"),
    "reference": (
        "log-probability of the reference answer",
        (
            "log-probability of the reference answer after the last prompt, in nats per token; the closer to "
            "zero, the more likely is the reference answer"
        ),
    ),
    "reference_difference": (
        "log-probability of the reference answer: this row minus plain RAG",
        (
            "how much higher the log-probability of the reference answer is in this row than with plain "
            "RAG, in nats per token"
        ),
    ),
    "reference_ahead": (
        "log-probability of the reference answer: EDC² minus this row",
        (
            "how much higher the log-probability of the reference answer is with EDC² (defaults) than in "
            "this row, in nats per token; above zero, EDC² is better"
        ),
    ),
    "gold_kept": ("gold passages kept, %", "gold passages that the row keeps; higher is better"),
    "gold_difference": (
        "gold passages kept, difference, points",
        (
            "gold passages kept, minus the gold passages that one call for each passage keeps; above zero is "
            "better"
        ),
    ),
    "all_gold_shown": ("all gold passages kept, %", "questions for which the row keeps all gold passages"),
    "kept": ("passages kept", "mean number of passages in the last prompt, per question"),
    "words": ("words", "mean number of words per answer"),
    "ahead": (
        "EDC² minus this row, points",
        "right answers of EDC² (defaults) minus right answers of the row; above zero, EDC² is better",
    ),
    "gate_ahead": (
        "gate minus random, points",
        (
            "only in rows that search at random: right answers of the gate named in the row (a quoted rule "
            "or L-RAG), minus right answers of the row's random searches"
        ),
    ),
    "auroc": (
        "AUROC",
        "probability that a wrong answer has a higher uncertainty than a right answer; 0.5 is chance",
    ),
    "own_auroc": (
        "AUROC, own answers",
        (
            "AUROC for the answers that were generated while the score was computed, instead of plain RAG's "
            "answers"
        ),
    ),
    "auroc_ahead": (
        "AUROC minus AUROC of the paper's score",
        "AUROC of the row minus AUROC of the paper's score; above zero is better",
    ),
    "right at 80%": (
        "retriever called for 80 % of the questions: right, %",
        (
            "share of right answers if L-RAG calls the retriever for the 80 % of the questions whose first "
            "answers have the highest uncertainty; higher is better"
        ),
    ),
    "right at 70%": (
        "retriever called for 70 % of the questions: right, %",
        "share of right answers if L-RAG calls the retriever for the 70 % with the highest uncertainty",
    ),
    "right at 60%": (
        "retriever called for 60 % of the questions: right, %",
        "share of right answers if L-RAG calls the retriever for the 60 % with the highest uncertainty",
    ),
    "60% difference": (
        "retriever called for 60 % of the questions: right answers minus always searching, points",
        (
            "right answers of the row minus right answers of always searching; the higher, the better; at "
            "zero, the saved searches cost no right answers"
        ),
    ),
    "60% ahead": (
        "retriever called for 60 % of the questions: right answers minus paper's score, points",
        (
            "right answers of the row minus right answers with the paper's score, both if L-RAG calls the "
            "retriever for 60 % of the questions; above zero is better"
        ),
    ),
    "chosen_threshold": (
        "calibrated τ",
        (
            "largest threshold with at most 2 points fewer right answers than always searching, chosen on a "
            "random half of the paragraphs; median of 200 random halves"
        ),
    ),
    "chosen_searches": (
        "calibrated τ: retriever called, share of the questions",
        (
            "share of the questions for which L-RAG calls the retriever with the calibrated τ, measured on "
            "the half of the paragraphs on which τ was not chosen; mean of 200 random halves; lower is "
            "cheaper"
        ),
    ),
    "chosen_difference": (
        "calibrated τ: right answers minus always searching, points",
        (
            "right answers with the calibrated τ, minus right answers of always searching, measured on "
            "the half of the paragraphs on which τ was not chosen; mean of 200 random halves"
        ),
    ),
    "surest 50%": (
        "surest half: right answers, %",
        "right answers among the 50 % of the answers with the lowest uncertainty; higher is better",
    ),
    "surest 70%": (
        "surest 70 %: right answers, %",
        "right answers among the 70 % of the answers with the lowest uncertainty",
    ),
    "surest 90%": (
        "surest 90 %: right answers, %",
        "right answers among the 90 % of the answers with the lowest uncertainty",
    ),
    "answered": ("answers shown, %", "answers that the policy shows; all other answers become abstentions"),
    "wrong among them": (
        "wrong among the shown answers, %",
        "wrong answers among the shown answers; lower is better",
    ),
    "broken": (
        "limit exceeded, % of 200 random splits",
        (
            "share of the random splits in which more of the shown answers are wrong than the limit allows, "
            "counted on the half on which the threshold was not chosen; lower is better"
        ),
    ),
    "r": (
        "Pearson's r",
        "correlation of the measure with the known usefulness of the passages; 1 is perfect",
    ),
    "gold": ("both gold passages", "mean value of the measure for both gold passages, whose usefulness is 1"),
    "half": (
        "one gold passage",
        "mean value of the measure for one of two gold passages, whose usefulness is ½",
    ),
    "distractors": (
        "two distractors",
        "mean value of the measure for two irrelevant passages, whose usefulness is 0",
    ),
    "hit": ("gold passage found, %", "questions for which the search finds the gold passage"),
    "context_share": ("context kept, %", "share of the passages' text that is left in the last prompt"),
    "fell_back": (
        "originals returned, %",
        "contexts that EDC² returned unchanged, because nothing was extracted",
    ),
    "gold_shown": (
        "gold passages in the prompt, %",
        "gold passages that are in the last prompt; higher is better",
    ),
    "searches": ("searches", "mean number of searches per question"),
    "calls": ("calls", "mean number of model calls per question"),
    "further calls": ("further calls", "model calls in addition to plain RAG's calls, mean per question"),
    "further tokens": ("further tokens", "tokens in addition to plain RAG's tokens, mean per question"),
    "tokens": ("tokens", "mean number of prompt and generated tokens per question, over all model calls"),
    "read": (
        "tokens with prefix cache",
        "mean number of tokens per question, if a server processes a shared beginning of prompts only once",
    ),
    "break_even_ms": (
        "break-even, ms",
        "duration of a search above which L-RAG saves time; the decision whether to search takes 50 ms",
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
    "DENSE refined": "DENSE-RAG's refiner",
    "at most 10% wrong": "limit: 10 % of the shown answers are wrong",
    "at most 20% wrong": "limit: 20 % of the shown answers are wrong",
    "at most 30% wrong": "limit: 30 % of the shown answers are wrong",
    "EDC² top 3 whole": "EDC² with its defaults",
    "EDC² top 6 whole": "EDC² with its defaults",
    "EDC² extract": 'EDC² with `variant="copy"`',
    "EDC² extract as in the paper": 'EDC² with `variant="paper"`',
    "EDC² answer": 'EDC² with `task="answer"`',
    "EDC² each": "one call for each passage",
    "EDC² together": "one call for all passages",
    "EDC² each in sight": "one call for each passage; each call shows all passages",
    "EDC² nearest": "no call; the nearest passages are kept",
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
    "LLM judge": "the model's own rating of the passages (a number from 0 to 10, divided by 10)",
    "hit": "a reference answer occurs in the passages",
    "difference of right answers": "right answers with passages minus right answers without passages",
    "difference of token F1": "token F1 with passages minus token F1 without passages",
    "ΔSePer": "ΔSePer with its defaults (10 samples)",
    "ΔSePer, hard kernel": 'ΔSePer with `kernel="hard"`',
    "ΔSePer, official variant": 'ΔSePer with `variant="official"`',
    "ΔSePer, paper's variant": 'ΔSePer with `variant="paper"`',
}
"""Rows whose names in the summaries are short, and what stands in the tables."""

READERS = {
    "demo": "the fine-tuned SmolLM2-135M",
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
