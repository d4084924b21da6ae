// SPDX-License-Identifier: Apache-2.0

package kvevents

// Reason says why an event was not used. The values are label values of
// metrics, traces and doctor; the list is closed.
type Reason string

// Reasons. The decoder reports those that need nothing but the event; the
// others depend on what came before it.
const (
	ReasonNone              Reason = ""
	ReasonMalformedBatch    Reason = "malformed_batch"
	ReasonMalformed         Reason = "malformed"
	ReasonUnknownType       Reason = "unknown_type"
	ReasonMultimodalTokens  Reason = "multimodal_tokens"
	ReasonUnknownMedium     Reason = "unknown_medium"
	ReasonNonLocal          Reason = "non_local"
	ReasonNonMainGroup      Reason = "non_main_group"
	ReasonUnaligned         Reason = "unaligned"
	ReasonPlaceholder       Reason = "placeholder"
	ReasonPartial           Reason = "partial"
	ReasonBlockSizeMismatch Reason = "block_size_mismatch"
	ReasonBlockSizeTooSmall Reason = "block_size_too_small"
	ReasonUnmappedLoRA      Reason = "unmapped_lora"
	ReasonUnattributable    Reason = "lora_unattributable"
	ReasonExtraKey          Reason = "extra_key"
	ReasonSelfParent        Reason = "self_parent"
	ReasonPartitionMismatch Reason = "partition_mismatch"
	ReasonUnknownParent     Reason = "unknown_parent"
	ReasonHiddenIdentity    Reason = "hidden_identity"
	ReasonBadFrame          Reason = "bad_frame"
)

// Reasons returns every reason but ReasonNone, in a fixed order.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformedBatch, ReasonMalformed, ReasonUnknownType, ReasonMultimodalTokens,
		ReasonUnknownMedium, ReasonNonLocal, ReasonNonMainGroup, ReasonUnaligned,
		ReasonPlaceholder, ReasonPartial, ReasonBlockSizeMismatch, ReasonBlockSizeTooSmall,
		ReasonUnmappedLoRA, ReasonUnattributable, ReasonExtraKey, ReasonSelfParent,
		ReasonPartitionMismatch, ReasonUnknownParent, ReasonHiddenIdentity, ReasonBadFrame,
	}
}
