package main

import "testing"

// arcRows says what shows each row of the tables of source document D: what it states (D.0), and what the original got wrong (D.5).
var arcRows = map[string][]string{
	"D.0 1 targets are classes":                     {"internal/dataset/TestParseArcRefuses", "reference/rl/TestEFEPanics", "cmd/train/TestArcRefuses", "log D1"},
	"D.0 2 Qwen_grad 0.00e+00":                      {"internal/train/TestArcNamesFaults", "internal/train/TestArcZeroGradient", "internal/train/TestArcRedFlags", "log D2"},
	"D.0 3 backward a second time":                  {"internal/train/TestArcOrder", "log D3"},
	"D.0 4 the encoder trains":                      {"internal/train/TestArcGradient", "internal/train/TestArcGroups"},
	"D.0 5 0.5 + 0.5 mask_ratio":                    {"internal/train/TestArcFormulas", "log D4"},
	"D.0 6 reward x 5":                              {"internal/train/TestArcFormulas", "cmd/train/TestArcWarns", "internal/train/TestArcRedFlags"},
	"D.0 7 the cache":                               {"internal/train/TestArcCache", "internal/train/TestArcCacheSpeed"},
	"D.0 8 the curriculum":                          {"internal/train/TestArcFormulas", "cmd/train/TestArcWarns"},
	"D.0 9 the gradient path":                       {"internal/train/TestArcGradient", "internal/train/TestArcOrder"},
	"D.0 10 the expected output":                    {"internal/train/TestArcLines", "internal/train/TestArcRedFlags"},
	"D.0 11 Qwen_grad nonzero":                      {"internal/train/TestArcFormulas", "internal/train/TestArcRedFlags", "log D8"},
	"D.0 12 the loss falls":                         {"internal/train/TestArcRedFlags", "cmd/train/TestArcLearns", "log D9"},
	"D.0 13 mask_ratio declines":                    {"internal/train/TestArcRedFlags", "cmd/train/TestArcLearns", "log D12"},
	"D.0 14 the reward trends positive":             {"internal/train/TestArcRedFlags"},
	"D.0 15 val accuracy up by epoch 2 or 3":        {"cmd/train/TestArcLearns", "internal/train/TestArcRedFlags", "log D13"},
	"D.0 16 Qwen_grad 0 for 100 batches":            {"internal/train/TestArcZeroGradient", "internal/train/TestArcRedFlags"},
	"D.0 17 loss flat or increasing":                {"internal/train/TestArcRedFlags"},
	"D.0 18 loss NaN":                               {"internal/train/TestArcNamesFaults", "cmd/train/TestArcRefuses", "log D10"},
	"D.0 19 reward always 0":                        {"internal/train/TestArcRedFlags", "log D11"},
	"D.0 20 three responsibilities":                 {"internal/train/TestArcOrder", "reference/rl/TestEFETape", "reference/model/TestArcTransposed"},
	"D.0 21 the command":                            {"cmd/train/TestArcFlags", "cmd/train/TestArcWarns"},
	"D.0 22 the first checkpoint":                   {"internal/train/TestArcFormulas", "internal/train/TestArcNamesFaults"},
	"D.0 23 the optimiser's group":                  {"internal/train/TestArcGroups"},
	"D.0 24 qwen.train()":                           {"internal/train/TestArcZeroGradient", "internal/train/TestArcGroups"},
	"D.0 25 no detach on the prompt":                {"internal/train/TestArcNamesFaults"},
	"D.0 26 the hook":                               {"internal/train/TestArcNamesFaults", "cmd/train/TestArcRun", "log D17"},
	"D.0 27 backward errors":                        {"internal/train/TestArcOrder", "internal/train/TestArcNamesFaults", "log D18"},
	"D.0 28 the loss explodes":                      {"internal/train/TestArcNamesFaults", "cmd/train/TestArcRefuses", "log D19"},
	"D.0 29 the summary":                            {"internal/train/TestArcRedFlags", "cmd/train/TestArcRun"},
	"D.5 1 policy and value learn":                  {"internal/train/TestArcPolicyGradient", "internal/train/TestArcNamesFaults"},
	"D.5 2 the projection is one parameter":         {"internal/train/TestArcGroups", "internal/train/TestArcGradient"},
	"D.5 3 fp16 and the scaler":                     {"internal/train/TestArcResume", "log H11"},
	"D.5 4 the target leaks":                        {"internal/train/TestArcSeesNoTarget"},
	"D.5 5 the density of the change":               {"internal/train/TestArcPolicyGradient", "reference/model/TestArcGolden"},
	"D.5 6 curiosity, tables before the optimiser":  {"internal/train/TestArcCuriosity", "internal/train/TestArcPreferences"},
	"D.5 7 the cache is keyed, and detached":        {"internal/train/TestArcCache", "internal/train/TestArcSeesNoTarget"},
	"D.5 8 evaluation builds no graph":              {"internal/train/TestArcOrder"},
	"D.5 bad input, sizes, tests without an output": {"cmd/train/TestArcRefuses", "internal/train/TestArcGradient", "internal/train/TestArcSentences"},
}

func TestRowsOfArc(t *testing.T) { shown(t, arcRows, 29+8+1) }
