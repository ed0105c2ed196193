package main

import "testing"

// grpoRows says what shows each row of source document B: what it states (B.0), and the facts about the original (B.6).
var grpoRows = map[string][]string{
	"B.0 1 loss 0.0000 in iteration 1":                    {"internal/train/TestGRPOStops", "internal/train/TestGRPOLog", "log B4", "log B5", "log H5"},
	"B.0 2 all rewards identical":                         {"internal/train/TestGRPOWarnings", "check reward/spread"},
	"B.0 3 log-probabilities of sequences are zero":       {"reference/rl/TestSequenceLoss", "cmd/train/TestSourceFaults", "check logp/new"},
	"B.0 4 the loss is divided by the steps":              {"cmd/train/TestSourceFaults", "check aggregate/loss", "log B3"},
	"B.0 5 compiling makes the first iteration slow":      {"log B5"},
	"B.0 6 forward passes of a micro-step":                {"cmd/train/TestGRPOPlan"},
	"B.0 7 samples of a micro-step and of an iteration":   {"cmd/train/TestGRPOPlan"},
	"B.0 8 compile may not help":                          {"cmd/train/TestGRPOQuick", "log B5"},
	"B.0 9 five diagnostic lines":                         {"internal/train/TestGRPOLog"},
	"B.0 10 what the lines tell":                          {"internal/train/TestGRPOLog"},
	"B.0 11 a budget of seconds":                          {"internal/train/TestGRPOLog", "log B5", "log B7"},
	"B.0 12 a budget with compile":                        {"log B5"},
	"B.0 13 the sign of pg_loss":                          {"reference/rl/TestSequenceLoss", "log B10"},
	"B.0 14 kl_penalty is small and positive":             {"reference/rl/TestSequenceLoss", "check kl/token", "log B10"},
	"B.0 15 a loss of exactly 0":                          {"internal/train/TestGRPOWarnings", "cmd/train/TestSourceFaults"},
	"B.0 16 rewards=X±X":                                  {"internal/train/TestGRPOLog", "check reward/spread"},
	"B.0 17 WARNING: All advantages":                      {"internal/train/TestGRPOWarnings"},
	"B.0 18 the judge, and completions that differ":       {"cmd/train/TestGRPORefused", "internal/train/TestGRPOWarnings", "check masks/duplicates"},
	"B.0 19 WARNING: All sequence_log_probs":              {"cmd/train/TestSourceFaults", "reference/rl/TestSequenceLoss"},
	"B.0 20 masks, logits and gather":                     {"internal/train/TestGRPOStops", "internal/train/TestGRPOBatch", "cmd/train/TestSourceFaults"},
	"B.0 21 which phase is slow":                          {"internal/train/TestGRPOLog", "log B7"},
	"B.0 22 compile = False":                              {"cmd/train/TestGRPOQuick"},
	"B.0 23 what to change":                               {"cmd/train/TestGRPOQuick", "cmd/train/TestGRPOPlan"},
	"B.0 24 the quick test":                               {"cmd/train/TestGRPOQuick"},
	"B.0 25 name = value":                                 {"internal/config/TestAssignments", "internal/config/TestAssignmentsRefused", "cmd/train/TestGRPOQuick"},
	"B.6 logits of the last position":                     {"internal/train/TestGRPOStops", "cmd/train/TestSourceFaults"},
	"B.6 the wait for data is a phase":                    {"internal/train/TestGRPOLog"},
	"B.6 a skipped micro-step does not divide":            {"internal/train/TestGRPOSkipped", "internal/train/TestGRPOWarnings"},
	"B.6 the sampler, the policy and the reference agree": {"internal/train/TestGRPOStops", "check first_step/kl"},
	"B.6 zero_std_ratio, advantages without division":     {"internal/train/TestGRPOLog", "cmd/train/TestGRPODumps"},
	"B.6 the judge reads CLS":                             {"reference/model/TestJudgeInput", "cmd/train/TestGRPOCutsText", "cmd/train/TestGRPORefused"},
}

func TestRowsOfGRPO(t *testing.T) { shown(t, grpoRows, 25+6) }
