package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Message is a turn of a conversation.
type Message struct {
	Role    string // system, user or assistant
	Content string
}

// ChatTemplate is a chat template that is rendered without its text, which is a program and is never run: ChatML, in which
// a turn is <|im_start|>{role}\n{content}<|im_end|>\n.
type ChatTemplate struct {
	Name   string // of the models that have it
	SHA256 string // of the template's text
	System string // content of a system turn that goes before a conversation that starts with none; "" for no such turn
}

// chatTemplates are the templates whose text was rendered by transformers 5.23.0 and agreed (golden/tokenizer/chat.json).
var chatTemplates = []ChatTemplate{
	{"ChatML", "153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", ""},
	{"Qwen1.5-Chat", "af9c0233881b083b52ff773580215222b5440ac3d0beeeca99b76329b048f8db", "You are a helpful assistant"},
	{"Qwen2-Instruct", "793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", "You are a helpful assistant."},
	{"Qwen2.5-Instruct", "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
	{"SmolLM2-Instruct", "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
}

// FindChatTemplate returns the template with the given text: chat_template of tokenizer_config.json or the file
// chat_template.jinja. A text that is not known to the byte is an error.
func FindChatTemplate(text string) (*ChatTemplate, error) {
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])
	var known []string
	for i, c := range chatTemplates {
		if c.SHA256 == hash {
			return &chatTemplates[i], nil
		}
		known = append(known, fmt.Sprintf("%s %.8s", c.Name, c.SHA256))
	}
	return nil, fmt.Errorf("chat template %s is not known; render with the trainer and pass token ids (known: %s)", hash, strings.Join(known, ", "))
}

// The tokens and the roles of ChatML.
const (
	turnStart = "<|im_start|>"
	turnEnd   = "<|im_end|>"
	system    = "system"
	user      = "user"
	assistant = "assistant"
)

// turns returns the messages with the default system turn. Roles of tools are refused: the templates render them in ways
// of their own.
func (c *ChatTemplate) turns(messages []Message) ([]Message, error) {
	if len(messages) == 0 {
		return nil, fmt.Errorf("chat template %s: no messages", c.Name)
	}
	for i, m := range messages {
		if m.Role != system && m.Role != user && m.Role != assistant {
			return nil, fmt.Errorf("chat template %s: message %d has the role %.32q, want system, user or assistant", c.Name, i, m.Role)
		}
	}
	if c.System != "" && messages[0].Role != system {
		messages = append([]Message{{system, c.System}}, messages...)
	}
	return messages, nil
}

// Encode returns the token ids of the conversation, and which of them the assistant said: the tokens of the content of its
// turns, the one in which the content starts included, and <|im_end|>. They are what a loss counts. A <|im_start|> or
// <|im_end|> inside a content is text and not a token, so that no content ends its turn; elsewhere the ids are those of
// the rendered text. t must have both as special tokens that swallow no white space.
func (c *ChatTemplate) Encode(t *Tokenizer, messages []Message, prompt bool) (ids []int, said []bool, err error) {
	turns, err := c.turns(messages)
	if err != nil {
		return nil, nil, err
	}
	start, err := c.marker(t, turnStart)
	if err != nil {
		return nil, nil, err
	}
	stop, err := c.marker(t, turnEnd)
	if err != nil {
		return nil, nil, err
	}
	e := encoder{t: t}
	for _, m := range turns {
		e.put(start, 0)
		first, size := len(e.ids), e.size
		head := m.Role + "\n"
		e.text(head+m.Content, false)
		for len(said) < first {
			said = append(said, false)
		}
		for _, end := range e.ends[first:] {
			said = append(said, m.Role == assistant && end > size+len(head))
		}
		e.put(stop, 0)
		said = append(said, m.Role == assistant)
		e.text("\n", false)
	}
	if prompt {
		e.put(start, 0)
		e.text(assistant+"\n", false)
	}
	for len(said) < len(e.ids) {
		said = append(said, false)
	}
	return e.ids, said, nil
}

func (c *ChatTemplate) marker(t *Tokenizer, text string) (int32, error) {
	for _, a := range t.raw.tokens {
		if a.content == text && a.special && !a.lstrip && !a.rstrip && !a.singleWord {
			return int32(a.id), nil
		}
	}
	return 0, fmt.Errorf("%s: chat template %s: %s is not a special token without strip flags of this tokenizer", t.file, c.Name, text)
}
