// Package cluster draws the rollouts of a training run on other processes and machines, over NATS JetStream.
//
// The coordinator is the process that learns. [Coordinator.Policy] is its policy with another Sample: the rows are put into a work
// queue, workers draw them, and the call returns what one process would have drawn, bit for bit, because a token's random number
// depends on the stream, the sample and its place alone. Workers hold the same base; what is trained comes to them as a blob that is
// named by its hash, and before they get work their log-probabilities of fixed texts must be those of the learner.
//
// The folder of the run is the truth: blobs and an index of what was accepted lie in RUN/cluster, and the queue is filled again from
// them whenever it is lost. A sample is known by the hash of policy, prompt, sampling, stream and number, so it counts once, however
// often it is drawn.
package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"plumbline/internal/train"
)

// Spec is what a worker must know of a run.
type Spec struct {
	Run       string          `json:"run"`
	Model     json.RawMessage `json:"model"`     // what the worker opens, as the coordinator's program wrote it
	Variant   string          `json:"variant"`   // of the arithmetic
	Base      string          `json:"base"`      // fingerprint of the weights that are not trained
	Tokenizer string          `json:"tokenizer"` // [TokenizerPrint]
	Blobs     string          `json:"blobs"`     // http://…, https://… or a folder
	Token     string          `json:"token"`     // for the blobs over HTTP
	Ended     bool            `json:"ended,omitempty"`
}

// policyEntry is the policy that samples are drawn from.
type policyEntry struct {
	Version int         `json:"version"` // policies of the run before it
	SHA256  string      `json:"sha256"`  // of the blob
	Base    string      `json:"base"`
	Canary  train.Batch `json:"canary"` // fixed texts
}

// task is rows of one call of Sample that follow one another.
type task struct {
	ID       string         `json:"id"`
	Policy   string         `json:"policy"`
	Seed     uint64         `json:"seed"` // key of the stream
	First    int            `json:"first"`
	EOS      int            `json:"eos"`
	Sampling train.Sampling `json:"sampling"`
	Prompts  train.Batch    `json:"prompts"` // padded as in the whole call, which decides the order of sums
	Samples  []string       `json:"samples"` // their hashes
}

// rollout is the blob of a task that was done. It says nothing of who did it: two workers write the same bytes.
type rollout struct {
	Policy   string      `json:"policy"`
	Seed     uint64      `json:"seed"`
	First    int         `json:"first"`
	Samples  []string    `json:"samples"`
	IDs      [][]int     `json:"ids"`
	LogProbs [][]float64 `json:"logp"`
}

// joining asks for work under a policy.
type joining struct {
	Worker    string   `json:"worker"`
	Policy    string   `json:"policy"`
	Variant   string   `json:"variant"`
	Base      string   `json:"base"`
	Tokenizer string   `json:"tokenizer"`
	Canary    []uint64 `json:"canary"` // the bits of log-probabilities and values
}

// submission hands over a rollout, or says why there is none.
type submission struct {
	Worker string `json:"worker"`
	Ticket string `json:"ticket"`
	Task   string `json:"task"`
	Policy string `json:"policy"`
	Blob   string `json:"blob"`
	Failed string `json:"failed,omitempty"`
}

// reply answers both.
type reply struct {
	Ticket string `json:"ticket,omitempty"`
	Reason string `json:"reason,omitempty"` // "" if it was taken
	Detail string `json:"detail,omitempty"`
}

// Reasons why something is not taken.
const (
	Duplicate     = "duplicate"      // known already: dropped
	Stale         = "stale policy"   // of an older policy
	UnknownPolicy = "unknown policy" // of none of this run
	UnknownTask   = "unknown task"   // nobody asked for it
	NotAdmitted   = "not admitted"   // no ticket for this policy: the canary is still to pass
	BadBlob       = "bad blob"       // missing, or not what its name says
	Malformed     = "malformed"      // not what was asked for
	WrongVariant  = "another variant"
	WrongBase     = "another base"
	WrongText     = "another tokenizer"
	WrongCanary   = "canary"
)

// RefusedError says that a worker gets no work, and why.
type RefusedError struct{ Reason, Detail string }

// GoneError says that no coordinator has answered for as long as a worker waits.
type GoneError struct {
	URL  string
	Wait time.Duration
	Last error
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("no coordinator at %s for %v: the run has ended, was never started there, or is gone (%v)", e.URL, e.Wait, e.Last)
}

func (e *GoneError) Unwrap() error { return e.Last }

func (e *RefusedError) Error() string {
	return "refused by the coordinator: " + e.Reason + ": " + e.Detail
}

// RunningError says that another coordinator has this run.
type RunningError struct{ Run, Who string }

func (e *RunningError) Error() string {
	return fmt.Sprintf("run %s has a coordinator already: %s", e.Run, e.Who)
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// encodePolicy returns the blob of the trainable tensors: a line for each with name and shape, an empty line, and the numbers as
// float32 in little-endian order. Masters are numbers of float32, so nothing is lost.
func encodePolicy(params []train.Param) []byte {
	b := policyHead(params)
	for _, p := range params {
		for _, v := range p.Data {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		}
	}
	return b
}

func policyHead(params []train.Param) []byte {
	var b bytes.Buffer
	for _, p := range params {
		fmt.Fprintf(&b, "%q %d\n", p.Name, p.Shape)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// decodePolicy stores a blob in the masters. It changes nothing if the blob is not one of these tensors.
func decodePolicy(params []train.Param, blob []byte) error {
	head, n := policyHead(params), 0
	for _, p := range params {
		n += len(p.Data)
	}
	if !bytes.HasPrefix(blob, head) {
		return errors.New("the policy is one of other tensors than those of this model")
	}
	data := blob[len(head):]
	if len(data) != 4*n {
		return fmt.Errorf("the policy has %d bytes of numbers, want %d", len(data), 4*n)
	}
	for _, p := range params {
		for i := range p.Data {
			p.Data[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
			data = data[4:]
		}
	}
	return nil
}

// sampleID is the hash that a sample is known by.
func sampleID(policy string, seed uint64, sample, eos int, s train.Sampling, ids []int, real []bool) string {
	text, err := json.Marshal(struct {
		Policy      string
		Seed        uint64
		Sample, EOS int
		Sampling    train.Sampling
		IDs         []int
		Real        []bool
	}{policy, seed, sample, eos, s, ids, real})
	if err != nil {
		panic("cluster: " + err.Error()) // a temperature that is not finite is refused by every configuration
	}
	return hash(text)
}

// probes are the fixed texts of the canary and of the fingerprint of a tokenizer.
var probes = []string{"The plumb line hangs straight, whatever the wall does.", "Question: what is 17 + 25?\nAnswer: 42", "def f(x):\n\treturn x**2  # naïve ½", "ABC abc 0123456789 ,.;:!? «ünïcødé» 漢字"}

// TokenizerPrint tells tokenizers apart by what they make of fixed texts, and by their end and padding.
func TokenizerPrint(t train.Tokenizer) string {
	var all []any
	for _, text := range probes {
		ids := t.Encode(text)
		all = append(all, ids, t.Decode(ids))
	}
	text, err := json.Marshal(append(all, t.EOS(), t.Pad()))
	if err != nil {
		panic("cluster: " + err.Error())
	}
	return hash(text)
}

// canaryOf returns the probes as a batch: of each the first eight tokens, half of them as a prompt.
func canaryOf(t train.Tokenizer) train.Batch {
	b := train.Batch{Prompt: 4, Response: 4}
	for _, text := range probes {
		if ids := t.Encode(text); len(ids) >= 8 {
			b.IDs = append(b.IDs, ids[:8]...)
			for range 8 {
				b.Real = append(b.Real, true)
			}
			b.Rows++
		}
	}
	return b
}

// sing returns the bits of what a policy says of the canary. The learner and a worker of one variant have the same: that is what
// [train.Policy] promises of equal masters, so the bound between them is 0.
func sing(p train.Policy, canary train.Batch) ([]uint64, error) {
	s, err := p.Score(canary)
	if err != nil {
		return nil, err
	}
	var bits []uint64
	for _, x := range append(s.LogProbs, s.Values...) {
		bits = append(bits, math.Float64bits(x))
	}
	return bits, nil
}

// apart returns the largest difference of two songs, infinite where they are not of one length or not finite.
func apart(a, b []uint64) float64 {
	if len(a) != len(b) || len(a) == 0 {
		return math.Inf(1)
	}
	most := 0.0
	for i := range a {
		d := math.Abs(math.Float64frombits(a[i]) - math.Float64frombits(b[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most
}
