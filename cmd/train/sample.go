package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/format/peft"
	"plumbline/internal/refmodel"
	"plumbline/internal/tokenizer"
	"plumbline/reference/sampling"
)

// sampleFlags are the flags of train sample.
type sampleFlags struct {
	model, adapter string
	prompt         string
	promptIDs      []int
	tokens         int
	temperature    float64
	topK           int
	topP           float64
	seed           uint64
	chat           bool
	parseSpecial   bool
	ids            bool
}

func newSample() *cobra.Command {
	var f sampleFlags
	cmd := &cobra.Command{
		Use:   "sample --model DIR|FILE [--adapter DIR] --prompt TEXT",
		Short: "continue a prompt with the float64 reference model",
		Long: `sample continues a prompt with the float64 reference model, token by token, and writes the new text to stdout; notes about
the files go to stderr. Without --temperature it is greedy.

The model is a folder of Hugging Face (config.json, safetensors, tokenizer.json; gpt2, gptj, llama and qwen2) or a GGUF file
(llama and qwen2), the adapter a folder of PEFT with a LoRA adapter. Of the folder of a run its last model is taken, final; where that
is an adapter, on the base that it names: the one beside it in the run, a folder, or an embedded model. A masked model of train grpo fills
in each _ of the prompt, all of them in one pass; a judge gives its verdict. It is loaded whole or refused with exit code 4.`,
		Example: `  train sample --model SmolLM2-135M-Instruct.gguf --chat --prompt "What is a plumb line?"
  train sample --model outputs/grpo --prompt "Shall I comp___ thee"
  train sample --model outputs/shielded_toy --prompt "Name a colour."
  train sample --model out/base --adapter out/step_100 --prompt "2+2=" --tokens 8 --temperature 0.7 --top-p 0.9 --seed 1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Sprintf("unexpected argument %q: a prompt goes in quotes after --prompt (train sample --help)", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.model, "model", "", "folder of a model of Hugging Face or of a run, or GGUF file")
	offer(cmd, "model", sampleModels)
	flags.StringVar(&f.adapter, "adapter", "", "folder of a LoRA adapter of PEFT for that model")
	flags.StringVar(&f.prompt, "prompt", "", "text to continue; with --chat the message of a user to answer")
	flags.IntSliceVar(&f.promptIDs, "prompt-ids", nil, "token ids to continue, in place of --prompt")
	flags.IntVar(&f.tokens, "tokens", 32, "at most so many new tokens")
	flags.Float64Var(&f.temperature, "temperature", 0, "divide the logits by this and draw; 0: greedy")
	flags.IntVar(&f.topK, "top-k", 0, "draw from the k most probable tokens; 0: from all")
	flags.Float64Var(&f.topP, "top-p", 1, "draw from the most probable tokens up to this mass; 1: from all")
	flags.Uint64Var(&f.seed, "seed", 0, "of the draws; equal seeds draw equal texts")
	flags.BoolVar(&f.chat, "chat", false, "put the prompt into the model's chat template (ChatML)")
	flags.BoolVar(&f.parseSpecial, "parse-special", false, "special tokens that are written out in the prompt are tokens, not text")
	flags.BoolVar(&f.ids, "ids", false, "print the new token ids, separated by commas, in place of the text")
	return cmd
}

// check refuses flags that are missing, out of range or contradict each other.
func (f *sampleFlags) check(cmd *cobra.Command) error {
	bad := func(msg string, args ...any) error {
		return usageError{fmt.Sprintf(msg, args...) + " (train sample --help)"}
	}
	set := cmd.Flags().Changed
	switch {
	case f.model == "":
		return bad("--model is missing")
	case set("adapter") && f.adapter == "":
		return bad("--adapter is empty")
	case set("prompt") == set("prompt-ids"):
		return bad("one of --prompt and --prompt-ids is needed")
	case f.chat && !set("prompt"):
		return bad("--chat needs --prompt")
	case f.chat && f.parseSpecial:
		return bad("--parse-special does not go with --chat: a message must not end its turn")
	case f.tokens < 1 || f.tokens > 1<<20:
		return bad("--tokens is %d, want 1 to %d", f.tokens, 1<<20)
	case !(f.temperature >= 0) || math.IsInf(f.temperature, 0):
		return bad("--temperature is %v, want a finite number from 0 up", f.temperature)
	case f.topK < 0:
		return bad("--top-k is %d, want 0 or more", f.topK)
	case !(f.topP > 0 && f.topP <= 1):
		return bad("--top-p is %v, want a number in (0, 1]", f.topP)
	}
	for _, name := range []string{"top-k", "top-p", "seed"} {
		if f.temperature == 0 && set(name) {
			return bad("--%s has no effect without --temperature above 0", name)
		}
	}
	return nil
}

func (f *sampleFlags) run(cmd *cobra.Command) error {
	bare := f.ids && cmd.Flags().Changed("prompt-ids") // ids in, ids out: no tokenizer is needed
	path := ofRun(f.model)
	if bind.IsMasked(path) {
		return f.fill(cmd, path)
	}
	path, done, err := f.base(path)
	if err != nil {
		return err
	}
	defer done()
	m, err := refmodel.Open(path, refmodel.Options{Adapter: f.adapter, NoTokenizer: bare})
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w%s", err, near(f.model, sampleModels()))
	}
	if err != nil {
		return err
	}
	for _, n := range m.Notes {
		complain("note: " + n)
	}
	prompt := f.promptIDs
	if f.chat {
		prompt, err = m.Chat(f.prompt)
	} else if cmd.Flags().Changed("prompt") {
		prompt = m.Encode(f.prompt, f.parseSpecial)
	}
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("tokens") { // as many as the model has positions for
		f.tokens = max(1, min(f.tokens, m.Base.Config.MaxPositions-len(prompt)+1))
	}
	out := cmd.OutOrStdout()
	emit := f.printText(m, out)
	if f.ids {
		emit = printIDs(out)
	}
	drawn, err := m.Generate(cmd.Context(), prompt, refmodel.GenerateOptions{
		Tokens: f.tokens, Sampling: sampling.Options{Temperature: f.temperature, TopK: f.topK, TopP: f.topP}, Seed: f.seed,
	}, emit.token)
	if err != nil && len(drawn) == 0 {
		return err
	}
	return errors.Join(err, emit.end())
}

// ofRun returns the last model of a run folder, and any other path as it is.
func ofRun(path string) string {
	final := filepath.Join(path, "final")
	for _, dir := range []string{path, final} {
		for _, name := range []string{"config.json", peft.ConfigFile} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return dir
			}
		}
	}
	return path
}

// base returns the path of the base of an adapter that was given as the model, which becomes the adapter of the flags; any other path as it
// is. The base is looked for beside the adapter, in the run, as a folder, and among the embedded models.
func (f *sampleFlags) base(path string) (base string, done func(), err error) {
	asItIs := func() (string, func(), error) { return path, func() {}, nil }
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return asItIs()
	}
	if _, err := os.Stat(filepath.Join(path, "config.json")); err == nil {
		return asItIs()
	}
	made, err := bind.BaseOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return asItIs()
	}
	if err != nil {
		return "", nil, err
	}
	if f.adapter != "" {
		return "", nil, usageError{fmt.Sprintf("--model %s is an adapter, and --adapter names another: give its base as --model", path)}
	}
	f.adapter = path
	for _, name := range []string{filepath.Join(path, "..", made), made} {
		if _, err := os.Stat(filepath.Join(name, "config.json")); err == nil && made != "" {
			return name, func() {}, nil
		}
	}
	base, done, err = bind.Unpack(made)
	if err == nil && base == made { // neither beside it nor a folder nor embedded: refused as a folder without a model
		f.adapter = ""
		return asItIs()
	}
	return base, done, err
}

// fill fills in the masked characters of a prompt, or gives the verdict of a judge on it.
func (f *sampleFlags) fill(cmd *cobra.Command, path string) error {
	for _, name := range []string{"adapter", "prompt-ids", "chat", "parse-special", "ids", "tokens"} {
		if cmd.Flags().Changed(name) {
			return usageError{fmt.Sprintf("--%s does not go with a masked model, which fills in each _ of --prompt (train sample --help)", name)}
		}
	}
	m, err := bind.OpenMasked(path, 0)
	if err != nil {
		return err
	}
	text, err := m.Fill(f.prompt, sampling.Options{Temperature: f.temperature, TopK: f.topK, TopP: f.topP}, f.seed)
	if err != nil {
		return usageError{"--prompt: " + err.Error()}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), visible(text))
	return err
}

// emitter writes tokens as they are drawn.
type emitter struct {
	token func(id int) error
	end   func() error
}

// printText writes text, special tokens left out.
func (f *sampleFlags) printText(m *refmodel.Model, out io.Writer) emitter {
	if m.Tokenizer == nil {
		return emitter{}
	}
	s := m.Tokenizer.NewStream(tokenizer.DecodeOptions{SkipSpecial: true})
	return emitter{
		token: func(id int) error {
			text, err := s.Push(id)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, visible(text))
			return err
		},
		end: func() error {
			_, err := io.WriteString(out, s.Flush()+"\n")
			return err
		},
	}
}

// printIDs writes ids on one line.
func printIDs(out io.Writer) emitter {
	separator := ""
	return emitter{
		token: func(id int) error {
			_, err := fmt.Fprintf(out, "%s%d", separator, id)
			separator = ","
			return err
		},
		end: func() error {
			_, err := io.WriteString(out, "\n")
			return err
		},
	}
}

// visible replaces the control characters that drive a terminal: what a model writes must not.
func visible(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\n' && c != '\t' && c != '\r' && unicode.IsControl(c) {
			return unicode.ReplacementChar
		}
		return c
	}, s)
}
