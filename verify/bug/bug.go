// Package bug is the registry of bugs that RL fine-tuning code has had: what each does, how it comes about, what it does to
// training, how it is mended, and where it was seen. The fault catalogue, the planted bugs, the reports and verify explain take
// their words from here, so that one bug has one title.
//
// The registry is two embedded texts. bugs.txt describes the bugs by id (AGG-GA-MISSING); codes.txt gives one line, and the
// upstream issues, of the codes that bugs and checks cite (P012, C4, V19).
package bug

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// Bug is one bug of training code. Texts have no capital at the start and no full stop.
type Bug struct {
	ID     string
	Rows   []string // codes that it stands for: see [FindCode]
	Title  string   // what the program does
	Cause  string   // how it comes about
	Effect string   // what it does to training
	Fix    string   // how to mend it
	Shows  string   // how a dump shows it, where the hypotheses and options that name it do not say so
	Before string   // the wrong code
	After  string   // the right code

	// Against is what a configuration has to declare before the numbers are wrong: what the bug makes of one is what another one asks
	// for. It is empty where no configuration makes them right.
	Against string
}

// Code is something that bugs and checks cite by a letter and a number.
type Code struct {
	ID       string
	Text     string
	Upstream []string // issues, as "trl#2617"
}

//go:embed bugs.txt
var bugText string

//go:embed codes.txt
var codeText string

var bugs = newRegistry("bugs.txt", bugText, parseBugs, func(b *Bug) string { return b.ID })

var codes = newRegistry("codes.txt", codeText, parseCodes, func(c *Code) string { return c.ID })

// All returns the bugs in the order of the pipeline. The slice is shared and must not be changed.
func All() []*Bug { return bugs.all() }

// Codes returns the codes in increasing order. The slice is shared and must not be changed.
func Codes() []*Code { return codes.all() }

// Find returns the bug of that id, nil if there is none.
func Find(id string) *Bug { return bugs.find(id) }

// FindCode returns the code of that name, nil if there is none.
func FindCode(id string) *Code { return codes.find(id) }

// MustFind is [Find] for ids in source text: it panics where the registry lacks the bug.
func MustFind(id string) *Bug { return bugs.mustFind(id) }

// Links returns the addresses of the upstream issues whose repository is known.
func (c *Code) Links() []string {
	var list []string
	for _, u := range c.Upstream {
		if m := issue.FindStringSubmatch(u); m != nil && repositories[m[1]] != "" {
			list = append(list, "https://github.com/"+repositories[m[1]]+"/issues/"+m[2])
		}
	}
	return list
}

var issue = regexp.MustCompile(`^(\S+)#([0-9]+)$`)

// repositories are the repositories that the names of upstream issues stand for.
var repositories = map[string]string{
	"trl": "huggingface/trl", "verl": "volcengine/verl", "OpenRLHF": "OpenRLHF/OpenRLHF", "NeMo-RL": "NVIDIA-NeMo/RL", "open-instruct": "allenai/open-instruct",
	"transformers": "huggingface/transformers", "peft": "huggingface/peft", "bitsandbytes": "bitsandbytes-foundation/bitsandbytes", "unsloth": "unslothai/unsloth",
	"prime-rl": "PrimeIntellect-ai/prime-rl", "AReaL": "inclusionAI/AReaL", "SkyRL": "NovaSky-AI/SkyRL", "torchtitan": "pytorch/torchtitan", "ms-swift": "modelscope/ms-swift",
	"Megatron-LM": "NVIDIA/Megatron-LM", "DeepSpeedExamples": "deepspeedai/DeepSpeedExamples", "lerobot": "huggingface/lerobot", "diffusers": "huggingface/diffusers",
	"pytorch/rl": "pytorch/rl", "pytorch/ao": "pytorch/ao", "google/tunix": "google/tunix", "CarperAI/trlx": "CarperAI/trlx", "Search-R1": "PeterGriffinJin/Search-R1",
	"EasyR1": "hiyouga/EasyR1", "miles": "radixark/miles", "TensorRT-LLM": "NVIDIA/TensorRT-LLM", "openvla": "openvla/openvla", "Gymnasium": "Farama-Foundation/Gymnasium",
}

func parseBugs(text string) ([]*Bug, error) {
	return parseEntries("bugs.txt", text, func(id string) *Bug { return &Bug{ID: id} }, func(b *Bug) (map[string]*string, map[string]*[]string) {
		return map[string]*string{"title": &b.Title, "cause": &b.Cause, "effect": &b.Effect, "fix": &b.Fix, "shows": &b.Shows, "before": &b.Before, "after": &b.After, "against": &b.Against},
			map[string]*[]string{"rows": &b.Rows}
	})
}

// parseCodes reads codes.txt: code, text and upstream issues between tabs, # for comments.
func parseCodes(text string) ([]*Code, error) {
	var list []*Code
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 2 || len(f) > 3 || f[1] == "" {
			return nil, fmt.Errorf("codes.txt:%d: want a code, a text and perhaps issues, between tabs", n+1)
		}
		c := &Code{ID: f[0], Text: f[1]}
		if len(f) == 3 {
			c.Upstream = upstream(f[2])
		}
		list = append(list, c)
	}
	return list, nil
}

// upstream splits "trl#2617, #3716; open-r1#239": an issue without a repository belongs to the one before.
func upstream(text string) []string {
	var list []string
	repository := ""
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' }) {
		s = strings.TrimSpace(s)
		if name, number, ok := strings.Cut(s, "#"); ok && name == "" {
			s = repository + "#" + number
		} else if ok {
			repository = name
		}
		list = append(list, s)
	}
	return list
}
