package pretrained

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

func TestTokenizerConfig(t *testing.T) {
	for _, c := range []struct{ text, eos, template string }{
		{`{}`, "", ""},
		{`{"eos_token": null, "chat_template": null}`, "", ""},
		{`{"eos_token": "</s>", "chat_template": "{{ a }}"}`, "</s>", "{{ a }}"},
		{`{"eos_token": {"content": "</s>", "lstrip": false}}`, "</s>", ""},
		{`{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}`, "", "d"},
		{`{"chat_template": [{"name": "rag", "template": "r"}, 1, {"name": "default"}]}`, "", ""},
	} {
		got, err := parseTokenizerConfig("f", []byte(c.text))
		require.NoError(t, err, c.text)
		require.Equal(t, tokenConfig{"f", c.eos, c.template}, got, c.text)
	}
	for _, text := range []string{``, `[]`, `{"eos_token": 1}`, `{"eos_token": {"content": 2}}`, `{"chat_template": {}}`, `{"eos_token": "a", "eos_token": "b"}`} {
		_, err := parseTokenizerConfig("f", []byte(text))
		require.True(t, format.IsMalformed(err), text)
	}
}

func FuzzTokenizerConfig(f *testing.F) {
	f.Add([]byte(`{"eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "d"}]}`))
	f.Add([]byte(`{"eos_token": "</s>", "chat_template": "d"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseTokenizerConfig("f", text)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		require.LessOrEqual(t, len(c.eos)+len(c.template), len(text))
	})
}
