"""The words of the tables: captions, and names of columns, rows, models and data sets."""

from __future__ import annotations

from collections.abc import Mapping

CAPTIONS = {
    "certainty-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows the two paragraphs nearest to "
        "the question. The paragraphs come from six articles that we did not use to choose the default "
        "measure. The default measure, the mean of the three greatest token entropies, has the highest "
        "AUROC. The intervals take into account that several questions are about the same paragraph."
    ),
    "certaintyhotpot-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows five passages, two of which are "
        "needed to answer the question. There is no evidence that the perplexity, the mean entropy of all "
        "tokens or the mean entropy of the first 8 tokens finds wrong answers on HotpotQA."
    ),
    "certaintyasked-qwen": (
        "Each row of the table is a measure of uncertainty. The mean of the three greatest entropies and the "
        "perplexity are computed from the tokens of the answer. Every other measure of the table needs "
        "further calls: we asked the model about its answer, or sampled further answers. If we ask for the "
        "certainty in percent, Qwen says 100 for every answer. There is no evidence that a measure with "
        "further calls finds wrong answers better than the mean of the three greatest entropies does."
    ),
    "certaintytraces-llama": (
        "The authors of the study AdaRAGUE (s-nlp/AdaRAGUE on GitHub) asked Llama-3.1-8B-Instruct five "
        "hundred questions of each of the data sets NQ and TriviaQA. The prompt showed no passages. The "
        "authors recorded the perplexity of each answer. In both data sets, the perplexity finds wrong "
        "answers better than chance."
    ),
    "certainty2wiki-qwen": (
        "Each row of the table is a measure of uncertainty. The prompt shows five passages. There is weak "
        "evidence that the default measure, the mean of the three greatest token entropies, finds wrong "
        "answers: the interval of its AUROC begins at chance (one half). There is no evidence that any other "
        "measure of the table finds wrong answers."
    ),
    "certainty-qwen.promise": (
        "Each row of the table is a limit for the share of wrong answers among the shown answers. An answer "
        "is shown if its uncertainty is at most a threshold. `calibrate_abstention` chose the threshold on a "
        "random half of the questions, and we counted the wrong answers among the shown answers of the other "
        "half. Each cell of the table is a mean over two hundred random splits of the questions into two "
        "halves. In each split, all questions about the same paragraph are in the same half. The guarantee "
        "(confidence 95 %) concerns the share of wrong answers among all answers that the policy would show "
        "for very many such questions. In the other half of the sample, this share can exceed the limit by "
        "chance. At the lowest limit, almost no answer is shown."
    ),
    "understanding-qwen": (
        "Each row of the table is a score that should be higher for wrong answers than for right answers. "
        "The prompt shows three passages. The entropy and the log-perplexity need no further model call. "
        "There is no evidence that any other score of the table finds wrong answers of plain RAG better than "
        "the entropy does."
    ),
    "understanding-demo": (
        "Each row of the table is a score that should be higher for wrong answers than for right answers. "
        "There is no evidence that DSE (DENSE-RAG's score) or the question “Is this answer right?” finds "
        "wrong answers of the fine-tuned SmolLM2-135M."
    ),
    "understanding-smollm2": (
        "Each row of the table is a score that should be higher for wrong answers than for right answers. "
        "There is no evidence that any score finds wrong answers of plain RAG. With so few questions, the "
        "intervals are wide."
    ),
    "understandingjudged-qwen": (
        "Each row of the table is a score that should be higher for wrong answers than for right answers. In "
        "the last row, Qwen itself decides which of its answers have the same meaning, as in appendix B.2 of "
        "DENSE-RAG's paper. The table does not count the model calls for these decisions. For "
        "both ways to decide, there is no evidence that DSE, the score of DENSE-RAG, finds wrong answers."
    ),
    "dense-world.Accuracy by DSE": (
        "Each row of the table is a range of DSE, the score of DENSE-RAG. The lower the DSE is, the larger "
        "is the share of right answers."
    ),
    "dense-readers": (
        "Each cell of the table is the AUROC of a score: the probability that the score is higher for a "
        "wrong answer than for a right answer (one half is chance). The entropy of plain RAG's answer finds "
        "wrong answers of both models. DSE finds wrong answers among Qwen's answers to DENSE-RAG's own "
        "prompt. For the other AUROCs of DSE in the table, there is no evidence that DSE finds wrong "
        "answers. The questions are from SQuAD 2.0."
    ),
    "dense-world.Claims": (
        "Each row of the table is a claim of DENSE-RAG's paper, with our result for two hundred questions "
        "about invented texts."
    ),
    "refiningdev-demo": (
        "Each row of the table is a system. Plain RAG shows the model the three nearest of ten passages. "
        "DENSE-RAG's refiner begins with the same three passages, and replaces some of these passages. (By "
        "default, the refiner begins with five passages.) *Uncertain questions* are questions for which the "
        "first three passages had a DSE, DENSE-RAG's score, above the threshold. There is no evidence that "
        "the refiner adds right answers."
    ),
    "refiningdev-qwen": (
        "Each row of the table is a system. *Uncertain questions* are questions for which the passages "
        "before the refinement had a DSE, DENSE-RAG's score, above the threshold. With Qwen, only six "
        "questions are uncertain. DENSE-RAG's refiner gives as many right answers as plain RAG."
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
        "Each row of the table is a way to search. There is no evidence that the ways to search differ in "
        "right answers. With so few questions, the intervals are wide."
    ),
    "prompts-qwen": (
        "Each row of the table is a prompt with which the model answers, and all prompts show the same "
        "passages. The prompt of DynQR's paper asks for one entity. This prompt gives fewer right answers "
        "than our default, the prompt of plain RAG."
    ),
    "prompts-demo": (
        "Each row of the table is a prompt with which the model answers, and all prompts show the same "
        "passages. The prompt of DENSE-RAG's paper gives fewer right answers than the prompt of plain RAG."
    ),
    "dynqr-world.Modes": (
        "Each row of the table is a rule for rewriting questions. DynQR rewrites a third of the questions, "
        "and gives as many right answers as the rule that rewrites every question and returns the more "
        "certain of two answers: the answer to the question, and the answer to the rewrite."
    ),
    "dynqr-world.By kind of question": (
        "Each row of the table is a kind of question. DynQR answers more under-specified questions right "
        "than plain RAG. There is no evidence that DynQR adds right answers to two-hop or single-hop "
        "questions."
    ),
    "dynqr-world.Claims": (
        "Each row of the table is a claim of DynQR's paper, with our result for three hundred questions "
        "about invented texts."
    ),
    "compressiondev-qwen": (
        "Each row of the table is a way to choose the passages of the final prompt. We did not use the "
        "questions of this table to choose a default. EDC² gives more right answers than LangChain's "
        "`EmbeddingsFilter`. There is no evidence that EDC² gives more right answers than plain RAG."
    ),
    "compressionprices-qwen": (
        "Each row of the table is a way to choose passages. For the row *EDC² with its defaults*, we ran "
        "surerag's component. For the row *one call for each passage*, code of the study chose passages by "
        "the same rule. For each row, we measured the probability that the model gives to the "
        "reference answer after the final prompt; for this measurement, the model generates no answer. The "
        "rows *no call*, *each call shows all passages* and *one call for all passages* keep fewer gold "
        "passages than EDC². The reference answer is more likely with the gold passages alone than with "
        "EDC². All other intervals of differences in log-probability contain zero. With so few questions, "
        "the intervals are wide."
    ),
    "compressionpaper-qwen": (
        "Each row of the table is a way to choose passages. With the prompt of EDC²-RAG's paper, EDC² "
        "returns 81 % of the contexts unchanged, and gives as many right answers as plain RAG."
    ),
    "compression20-qwen": (
        "Each row of the table is a way to choose passages. EDC² keeps six of the 20 passages. We had "
        "already used the questions of this table to choose EDC²'s defaults. There is no evidence that EDC², "
        "LangChain's `EmbeddingsFilter` and plain RAG differ in right answers."
    ),
    "compression2wiki-qwen": (
        "Each row of the table is a way to choose passages. There is no evidence that selecting passages for "
        "these questions adds right answers, not even if the selection is perfect (gold passages alone)."
    ),
    "compressionsquad-qwen": (
        "Each row of the table is a way to choose among the ten paragraphs that the search returned. Even a "
        "perfect selection (gold passages alone) gives no more right answers than plain RAG, so we cannot "
        "expect that EDC² adds right answers."
    ),
    "compression5-qwen": (
        "Each row of the table is a way to choose among five passages. There is no evidence that the rows "
        "differ in right answers."
    ),
    "compressionrepeats-qwen": (
        "Each row of the table is a way to choose passages. A repeat is a passage that is an excerpt of "
        "another passage. EDC² removes repeats before it asks the model about each passage. LangChain's "
        "`EmbeddingsFilter` keeps repeats, which take the places of gold passages."
    ),
    "compressionrepeatsnew-qwen": (
        "In the data set, the questions of this table come after the questions of the table above. Each row "
        "of the table is a way to choose passages. For the questions of this table, too, EDC² gives more "
        "right answers than LangChain's `EmbeddingsFilter`."
    ),
    "compressiondev-demo": (
        "Each row of the table is a way to choose among ten passages. With a perfect selection of passages "
        "(gold passages alone), the fine-tuned SmolLM2-135M gives more right answers than with all ten "
        "passages, but EDC² does not find the perfect selection."
    ),
    "compressionrepeats-demo": (
        "Each row of the table is a way to choose among five passages and five repeats of these passages. "
        "There is no evidence that EDC² and LangChain's `EmbeddingsFilter` differ in right answers."
    ),
    "compressiondev-smollm2": (
        "Each row of the table is a way to choose among ten passages. With a perfect selection of passages "
        "(gold passages alone), SmolLM2-135M gives more right answers than with all ten passages, but EDC² "
        "does not find the perfect selection."
    ),
    "compression-qwen": (
        "Each row of the table is plain RAG, the gold passages alone, or a component that shortens the "
        "context. If a component has an option for the length of the context, we set the option to three "
        'passages or to half of the sentences. Of the components, EDC² with `variant="whole"` gives the most '
        'right answers, so we chose `"whole"` as the default. The row *EDC² with its defaults* has this '
        "variant."
    ),
    "edc2-elsewhere": (
        "Each row of the table is a study. The column *EDC² minus plain RAG* has the right answers of EDC² "
        "minus the right answers of plain RAG, so EDC² is better if the value is above zero. The last column "
        "compares EDC² with LangChain's `EmbeddingsFilter` in the same way. If passages repeat other "
        "passages, EDC² with Qwen gives more right answers than `EmbeddingsFilter`. All other intervals "
        "contain zero, so there is no evidence of another difference."
    ),
    "gatescores-qwen.scores": (
        "The first two rows of the table are systems. Each further row is a measure of the uncertainty of "
        "L-RAG's first answer. The prompt of the first answer does not ask the model to abstain. The mean of "
        "the three greatest token entropies has the highest AUROC. The paper's score, the mean entropy of "
        "the first eight tokens, has the lowest AUROC."
    ),
    "gates-qwen": (
        "Each row of the table is a rule that decides whether to search. We did not use the articles of "
        "these questions to choose a default, but we had seen results of earlier studies on these articles. "
        "Of the gates that save searches, two kinds give about as many right answers as always searching: "
        "gates that search after every abstention, and gates with an entropy threshold of at most 0.5."
    ),
    "gates-demo": (
        "Each row of the table is a rule that decides whether to search. L-RAG's default rule searches if "
        "the entropy is above 0.5, or after an abstention. The default rule gives more right answers than a "
        "system that calls the retriever for equally many random questions. The default rule gives as many "
        "right answers as always searching."
    ),
    "gates-demo-seed8": (
        "Each row of the table is a rule that decides whether to search. This table has fewer questions than "
        "the table above. The data do not show that L-RAG gives more right answers than a system that calls "
        "the retriever for equally many random questions."
    ),
    "gates-smollm2": (
        "Each row of the table is a rule that decides whether to search. The two rules that save many "
        "searches give fewer right answers than always searching. All other rules search for nearly every "
        "question, because the original SmolLM2-135M is nearly always uncertain."
    ),
    "gatesnew-qwen": (
        "Each row of the table is a rule that decides whether to search. For the row *L-RAG, the component "
        "itself*, we ran surerag's component `LazyRAG`. For all other rows, we computed the result from "
        "stored answers. `LazyRAG` searches if the entropy is above 0.5, or after an abstention. `LazyRAG` "
        "gives more right answers than a system that calls the retriever for equally many random questions. "
        "`LazyRAG` gives about as many right answers as always searching."
    ),
    "lazy-world.Table I": (
        "Each row of the table is a system of the paper's Table I. The name of the system in the paper "
        "stands in parentheses. The last three columns have the paper's results with the model Phi-2 on "
        "SQuAD 2.0. All other columns have our results for invented texts (the closed world). In the closed "
        "world, L-RAG gives as many right answers as always searching, with a third fewer searches."
    ),
    "lazy-world.Claims": (
        "Each row of the table is a claim, with our result on three hundred questions. The last claim is "
        "about our code, and we checked the last claim on fifty questions. L-RAG's rule (Eq. 4) takes the "
        "answer that follows a search if the entropy of the first answer is above τ, and otherwise the first "
        "answer."
    ),
    "lazy-latency": (
        "In each row of the table, L-RAG calls the retriever for another share of the questions, as in the "
        "paper's Table III. We assume that the decision whether to search takes 50 ms. L-RAG saves time if a "
        "search takes longer than the break-even in the second column. Each further column is for one "
        "duration of a search, and has the mean number of milliseconds that L-RAG saves for a question."
    ),
    "traces": (
        "The recorded data of the study AdaRAGUE (s-nlp/AdaRAGUE, arXiv 2501.12835) hold the answers of "
        "Llama-3.1-8B-Instruct to five hundred questions of each of the data sets NQ and TriviaQA, without a "
        "search and after one search. A search can miss the right passage. The data also hold the perplexity "
        "of a further answer: the answer to another prompt, without a search. The perplexity finds wrong "
        "answers among these further answers. The data do not show that calling the retriever for the most "
        "uncertain half of the questions gives more right answers than calling the retriever for a random "
        "half."
    ),
    "worth-qwen": (
        "Each row of the table is a measure of how useful passages are. The measure that checks whether a "
        "reference answer occurs in the passages correlates most with the usefulness of the passages. In "
        "this study, two answers match only if they have the same words, so each comparison of two answers "
        'gives 0 or 1. The options `kernel="soft"` (the default) and `kernel="hard"`, which differ only for '
        "values between 0 and 1, give the same results."
    ),
    "worthdev-demo": (
        "Each row of the table is a measure of how useful passages are. With the fine-tuned SmolLM2-135M, "
        "too, ΔSePer correlates with the usefulness of the passages. There is no evidence that the "
        "model's own rating (last row) correlates with the usefulness."
    ),
    "worthdev-smollm2": (
        "Each row of the table is a measure of how useful passages are. In this study, an answer counts as "
        "right only if it has the same words as the reference answer. SmolLM2-135M gives long answers, which "
        "never have the same words, so ΔSePer is near zero."
    ),
    "seper-weights.Error of the belief": (
        "Each row of the table is a way to weigh ten sampled answers. Each cell of the table has the root "
        "mean square error of SePer, and then the mean error of SePer, over four hundred simulated models. "
        "We know the probability of each possible answer of a simulated model, and so the true "
        "probability of the right answer. Smaller errors are better. α is the parameter of the Dirichlet "
        "distribution from which we drew the probabilities of the next token. The larger α is, the more "
        "uncertain are the simulated models."
    ),
    "levels.intervals": (
        "Each row of the table is a kind of difference between two systems on n questions. Each percentage "
        "should be at least 95 %. In small samples, the intervals of costs are too narrow. No other interval "
        "is clearly too narrow."
    ),
    "levels.shares": (
        "Each row of the table is a number n of questions. Each cell of the table is the probability that "
        "the interval contains the true share of right answers. The mean of this probability over all true "
        "shares should be at least 95 %. The probability is lower if the true share is very close to one."
    ),
    "levels.skewed": (
        "Each row of the table is a distribution of scores or costs on n questions. Each percentage should "
        "be at least 95 %. The last row shows why surerag refuses a requirement on a mean cost: costs can "
        "have rare large values, and then the interval often misses the true mean."
    ),
    "levels.groups": (
        "Each row of the table is a statistic whose interval we check. Each sample has n questions, and each "
        "document has five questions. Each percentage should be at least 95 %. In the columns *questions "
        "treated as independent*, the interval ignores that questions share documents, and most intervals "
        "are too narrow."
    ),
    "levels.requirements": (
        "Each row of the table is a requirement of `surerag compare`, that is, a limit for a score or a cost "
        "of system *a*. Some limits depend on system *b*. Each sample has n questions. In the columns *true "
        "value at the limit*, the true value equals the limit, so a requirement should pass in at most 5 % "
        "of the samples. In the columns *true value better than the limit*, a requirement should pass in as "
        "many samples as possible. If a requirement ends with *in 98 % of questions*, the limit must hold "
        "for at least 98 % of the questions. If a requirement ends with *capped at 61*, costs above 61 count "
        "as 61, and the mean of the capped costs must keep the limit. In the last four rows, the simulated "
        "cost of a question is usually about 1, and rarely 61 (tokens). If the true value equals the "
        "limit, each requirement passes in about 5 % of the samples or fewer."
    ),
    "levels.power": (
        "Each row of the table is a true difference between two systems. The number of questions that "
        "surerag recommends depends on how many systems are compared with the baseline. With the recommended "
        "number of questions, a test should find the difference in about 80 % of the samples."
    ),
    "levels.abstention": (
        "Each row of the table is a limit for the share of wrong answers among the shown answers, together "
        "with a simulated model. The model's mean uncertainty differs between right and wrong answers by the "
        "given number of standard deviations (σ). Each of 250 samples has 250 questions. The share of wrong "
        "answers may exceed the limit in up to 5 % of the samples. A larger share of shown answers is better."
    ),
    "levels.thresholds": (
        "`calibrate_threshold` chooses the threshold of L-RAG's uncertainty above which L-RAG searches. With "
        "the chosen threshold, L-RAG may give at most two points fewer right answers than always searching. "
        "Each row of the table says for how many questions a search repairs a wrong first answer, for how "
        "many questions a search spoils a right first answer, and by how many standard deviations (σ) the "
        "mean uncertainty of repaired or spoiled answers differs from the mean uncertainty of unchanged "
        "answers. Each of 250 samples has 250 questions. The loss may exceed two points in up to 5 % of the "
        "samples. A threshold is *certified* if `calibrate_threshold` guarantees the limit of the loss. "
        "Without a certified threshold, L-RAG always searches. A larger share of saved searches is better."
    ),
}
"""Captions by the name of the table: what a row is, and what follows from the table."""

COLUMNS: Mapping[str, tuple[str, str]] = {
    "system": ("", ""),
    "n": ("questions", "number of questions"),
    "right": (
        "right, %",
        (
            "share of answers that contain a reference answer; higher is better; long answers have an "
            "advantage"
        ),
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
            "only if the interval of the difference contains zero: number of questions with which a study "
            "would find a difference of this size with a probability of 80 %"
        ),
    ),
    "exact": ("exact, %", "share of answers that equal a reference answer; higher is better"),
    "reference": (
        "log-probability of the reference answer",
        (
            "log-probability of the reference answer after the final prompt, in nats per token; the closer "
            "to zero, the more likely is the reference answer"
        ),
    ),
    "reference_difference": (
        "log-probability of the reference answer: this row minus plain RAG",
        (
            "how much higher the log-probability of the reference answer is in this row than with plain RAG, "
            "in nats per token"
        ),
    ),
    "reference_ahead": (
        "log-probability of the reference answer: EDC² minus this row",
        (
            "how much higher the log-probability of the reference answer is with EDC² and its defaults than "
            "in this row, in nats per token; above zero, EDC² is better"
        ),
    ),
    "gold_kept": (
        "gold passages kept, %",
        ("share of the gold passages that the row keeps; higher is better"),
    ),
    "gold_difference": (
        "gold passages kept, difference, points",
        (
            "gold passages kept, minus the gold passages that one call for each passage keeps; above zero is "
            "better"
        ),
    ),
    "all_gold_shown": (
        "all gold passages kept, %",
        ("share of the questions for which the row keeps all gold passages"),
    ),
    "kept": ("passages kept", "mean number of passages in the final prompt, per question"),
    "words": ("words", "mean number of words per answer"),
    "ahead": (
        "EDC² minus this row, points",
        (
            "right answers of EDC² with its defaults, minus right answers of the row; above zero, EDC² is "
            "better"
        ),
    ),
    "gate_ahead": (
        "gate minus random, points",
        (
            "only in rows that search at random: right answers of the gate that searches as often as the row "
            "(the rule in quotation marks, or L-RAG), minus right answers of the row's random searches; "
            "above zero, the gate is better"
        ),
    ),
    "auroc": (
        "AUROC",
        ("probability that a wrong answer has a higher uncertainty than a right answer; 0.5 is chance"),
    ),
    "own_auroc": (
        "AUROC, own answers",
        (
            "AUROC for the answers that the model gave while the score was computed, instead of plain RAG's "
            "answers"
        ),
    ),
    "auroc_ahead": (
        "AUROC minus AUROC of the paper's score",
        ("AUROC of the row minus AUROC of the paper's score; above zero is better"),
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
        (
            "share of right answers if L-RAG calls the retriever for the 70 % of the questions whose first "
            "answers have the highest uncertainty; higher is better"
        ),
    ),
    "right at 60%": (
        "retriever called for 60 % of the questions: right, %",
        (
            "share of right answers if L-RAG calls the retriever for the 60 % of the questions whose first "
            "answers have the highest uncertainty; higher is better"
        ),
    ),
    "60% difference": (
        "retriever called for 60 % of the questions: right answers minus always searching, points",
        (
            "right answers of the row minus right answers of always searching, if L-RAG calls the retriever "
            "for 60 % of the questions; at zero, the saved searches cost no right answers; higher is better"
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
            "largest threshold τ with which L-RAG gives at most 2 points fewer right answers than always "
            "searching, chosen on a random half of the paragraphs; median of 200 random halves"
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
            "right answers with the calibrated τ, minus right answers of always searching, measured on the "
            "half of the paragraphs on which τ was not chosen; mean of 200 random halves"
        ),
    ),
    "surest 50%": (
        "surest half: right answers, %",
        (
            "share of right answers among the 50 % of the answers with the lowest uncertainty; higher is "
            "better"
        ),
    ),
    "surest 70%": (
        "surest 70 %: right answers, %",
        (
            "share of right answers among the 70 % of the answers with the lowest uncertainty; higher is "
            "better"
        ),
    ),
    "surest 90%": (
        "surest 90 %: right answers, %",
        (
            "share of right answers among the 90 % of the answers with the lowest uncertainty; higher is "
            "better"
        ),
    ),
    "answered": (
        "answers shown, %",
        (
            "share of the answers whose uncertainty is at most the threshold; all other answers become "
            "abstentions"
        ),
    ),
    "wrong among them": (
        "wrong among the shown answers, %",
        ("share of wrong answers among the shown answers; lower is better"),
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
        ("correlation of the measure with the known usefulness of the passages; 1 is perfect"),
    ),
    "gold": (
        "both gold passages",
        ("mean value of the measure for both gold passages, whose usefulness is 1"),
    ),
    "half": (
        "one gold passage",
        ("mean value of the measure for one of two gold passages, whose usefulness is ½"),
    ),
    "distractors": (
        "two distractors",
        ("mean value of the measure for two irrelevant passages, whose usefulness is 0"),
    ),
    "hit": (
        "gold passage found, %",
        ("share of the questions for which the search finds the gold passage; higher is better"),
    ),
    "context_share": (
        "context kept, %",
        ("share of the passages' text that is left in the final prompt"),
    ),
    "fell_back": (
        "originals returned, %",
        ("share of the contexts that EDC² returned unchanged because the model extracted nothing"),
    ),
    "gold_shown": (
        "gold passages in the prompt, %",
        ("share of the gold passages that are in the final prompt; higher is better"),
    ),
    "searches": ("searches", "mean number of searches per question"),
    "calls": ("calls", "mean number of model calls per question"),
    "further calls": (
        "further calls",
        ("model calls in addition to plain RAG's calls, mean per question"),
    ),
    "further tokens": (
        "further tokens",
        ("tokens in addition to plain RAG's tokens, mean per question"),
    ),
    "tokens": (
        "tokens",
        ("mean number of prompt and generated tokens per question, over all model calls"),
    ),
    "read": (
        "tokens with prefix cache",
        (
            "mean number of tokens per question if a server processes a beginning that several prompts share "
            "only once"
        ),
    ),
    "break_even_ms": (
        "break-even, ms",
        (
            "number of milliseconds that a search must take so that L-RAG saves time; we assume that the "
            "decision whether to search takes 50 ms"
        ),
    ),
}
"""Columns of the tables of real models, in the order of the tables: the heads and the meanings."""

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
    "a number in words": "ask for the certainty in percent",
    "disagreement of 5 samples": "share of 5 samples that disagree with the answer",
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
"""Names of the rows in the tables, by their short names in the summaries."""

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
