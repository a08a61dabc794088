-- name: Commit :one
SELECT sagad_commit(
    @b_shard::integer[], @b_epoch::bigint[], @b_grant::uuid[], @b_seq::bigint[], @b_updates::integer[],
    @t_batch::integer[], @t_run::uuid[], @t_n::integer[], @t_at::timestamptz[], @t_facts::bytea[],
    @s_batch::integer[], @s_new::boolean[], @s_run::uuid[], @s_n::integer[], @s_namespace::text[], @s_id::text[],
    @s_definition::text[], @s_version::integer[], @s_status::smallint[], @s_digest::bytea[],
    @s_started_at::timestamptz[], @s_changed_at::timestamptz[], @s_deadline::timestamptz[], @s_labels::text[],
    @s_cause::bytea[], @s_settled_by_hand::integer[],
    @i_batch::integer[], @i_run::uuid[], @i_number::integer[], @i_namespace::text[], @i_saga_id::text[],
    @i_definition::text[], @i_kind::smallint[], @i_status::smallint[], @i_direction::smallint[],
    @i_blocking::boolean[], @i_step::text[], @i_code::text[], @i_message::text[], @i_fingerprint::text[],
    @i_attempts::integer[], @i_how::text[], @i_opened_at::timestamptz[], @i_changed_at::timestamptz[],
    @i_saga_n::bigint[]
)::smallint[] AS results;
