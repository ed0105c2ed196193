package golden

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/tokenizer"
)

// Tokenizer judges the ids of texts.
var Tokenizer = texts.check()

var texts = &section{
	name:  textSection,
	title: "token ids of texts are those of transformers",
	doc: `Encodes every text with the tokenizer whose file has the sha256 that the goldens name: without and with what the
post-processor adds, special tokens in the text as their ids. Decodes the recorded ids, special tokens as their text. Ids and
texts must be equal, and the text must come back where it did there.`,
	source:    "transformers@5.23.0 PreTrainedTokenizerFast with tokenizers@0.23.3; tokenizer.json; internal/tokenizer",
	functions: map[string]recompute{"transformers tokenizer(text, add_special_tokens=False)": encoded},
	faults:    textFaults,
}

// textSection is the name of the section.
const textSection = "tokenizer"

// tokenizerFile is a tokenizer that is read when it is first needed.
type tokenizerFile struct {
	file    string // for messages; "" if the set has none of that digest
	content []byte
	packed  bool // by gzip
	sum     string

	read      bool
	tokenizer *tokenizer.Tokenizer
	err       error
}

// get returns the tokenizer.
func (t *tokenizerFile) get() (*tokenizer.Tokenizer, error) {
	if !t.read {
		t.read = true
		t.tokenizer, t.err = t.parse()
		t.content = nil
	}
	return t.tokenizer, t.err
}

func (t *tokenizerFile) parse() (*tokenizer.Tokenizer, error) {
	if t.file == "" {
		return nil, fmt.Errorf("no tokenizer.json of the set has the sha256 %s that the goldens name", t.sum)
	}
	content := t.content
	if t.packed {
		z, err := gzip.NewReader(bytes.NewReader(content))
		if err == nil {
			content, err = io.ReadAll(io.LimitReader(z, format.MaxIndex+1))
		}
		if err != nil {
			return nil, format.Malformed(t.file, "", "%v", err)
		}
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != t.sum {
		return nil, fmt.Errorf("%s has the sha256 %x, the goldens name %s", t.file, sum, t.sum)
	}
	return tokenizer.Parse(t.file, content)
}

// texts reads a file of texts with their ids. Its tokenizer is tokenizer/tokenizer.json, or the only packed one beside it.
func (l *loader) texts(f *File, text []byte) error {
	t := &tokenizerFile{}
	folder := path.Dir(f.Name)
	entries, err := readTexts(l.shown(f.Name), text, t)
	if err != nil {
		return err
	}
	for _, other := range l.set.Files {
		if other.Name == path.Join(folder, "tokenizer", "tokenizer.json") || t.file == "" && path.Dir(other.Name) == folder && strings.HasSuffix(other.Name, ".json.gz") {
			if t.content, err = l.read(l.find(other.Name)); err != nil {
				return err
			}
			t.file, t.packed = l.shown(other.Name), strings.HasSuffix(other.Name, ".gz")
		}
	}
	if l.set.Sections[textSection] != nil {
		return format.Malformed(l.shown(f.Name), "", "is a second file of texts with their ids")
	}
	l.set.Sections[textSection] = &Section{Name: textSection, File: f.Name, Entries: entries}
	return nil
}

// readTexts reads the entries of a file of texts, and into t the digest of their tokenizer.
func readTexts(file string, text []byte, t *tokenizerFile) ([]*Entry, error) {
	var list []*Entry
	var peer, version, function string
	heads := map[string]*string{"peer": &peer, "version": &version, "function": &function, "tokenizer_json_sha256": &t.sum}
	j := format.NewScanner(file, text, 0)
	err := j.Document(func(key string) (err error) {
		switch {
		case heads[key] != nil:
			*heads[key], err = j.String()
		case key == "entries":
			err = j.Array(func(i int) error {
				e, err := readText(j)
				if err == nil && len(e.Out) == 0 {
					err = j.Malformed("entry %d has no ids", i)
				}
				e.ID, e.Case, e.File, e.tokenizer = fmt.Sprintf("tokenizer/%04d", i), fmt.Sprintf("text %d", i), file, t
				list = append(list, e)
				return err
			})
		default:
			err = j.Skip()
		}
		return err
	})
	for _, e := range list {
		e.Peer, e.Version, e.Function = peer, version, function
	}
	return list, err
}

// readText reads one entry.
func readText(j *format.Scanner) (*Entry, error) {
	e := &Entry{Options: map[string]any{}, In: map[string]*Value{}, Out: map[string]*Value{}}
	err := j.Object(func(key string) error {
		switch key {
		case "text", "decode":
			s, err := j.String()
			if key == "text" {
				e.In[key] = &Value{Raw: s}
			} else {
				e.Out[key] = &Value{Raw: s}
			}
			return err
		case "ids", "ids_default":
			v := &Value{Data: []float64{}}
			err := j.Array(func(int) error {
				id, err := j.Int()
				v.Data = append(v.Data, float64(id))
				return err
			})
			v.Raw, e.Out[key] = v.Data, v
			return err
		case "round_trip":
			b, err := j.Bool()
			e.Out[key] = &Value{Raw: b, Data: numbers(b)}
			return err
		}
		return j.Skip()
	})
	return e, err
}

// encoded recomputes the ids of a text.
func encoded(c *call) []answer {
	text, isText := "", false
	if v := c.e.In["text"]; v != nil {
		text, isText = v.Raw.(string)
	}
	ids := c.e.Out["ids"]
	if !isText || ids == nil || ids.Raises == "" && ids.Data == nil {
		c.malformed("want a text and its ids")
	}
	if c.ok() && c.e.tokenizer == nil {
		c.undetermined("no tokenizer belongs to this entry")
	}
	if !c.ok() {
		return nil
	}
	t, err := c.e.tokenizer.get()
	if err != nil { // also of a form that is not of the families known here
		c.undetermined("%v", err)
		return nil
	}
	recorded := make([]int, len(ids.Data))
	for i, id := range ids.Data {
		if id != math.Trunc(id) || !(math.Abs(id) <= math.MaxInt32) {
			c.malformed("output ids: element %d is %v, want an id", i, id)
			return nil
		}
		recorded[i] = int(id)
	}
	back, err := t.Decode(recorded, tokenizer.DecodeOptions{})
	if err != nil {
		back, err = "", errors.Join(errNoToken, err)
	}
	list := func(output string, special bool) answer {
		a := equal(output, floats(t.Encode(text, tokenizer.EncodeOptions{AddSpecial: special, ParseSpecial: true}))...)
		a.list = true
		return a
	}
	plain, def := list("ids", false), list("ids_default", true)
	def.maybe = true
	decoded := answer{output: "decode", text: &back, err: err, maybe: true}
	same := 0.0
	if back == text {
		same = 1
	}
	return []answer{plain, def, decoded, {output: "round_trip", got: []float64{same}, tight: true, maybe: true}}
}

// errNoToken is the refusal of an id without a token.
var errNoToken = errors.New("an id without a token")
