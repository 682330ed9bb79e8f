CREATE TABLE IF NOT EXISTS samples (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `measured_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `epoch` LowCardinality(String) CODEC(ZSTD(1)),
    `seq` UInt64 CODEC(Delta, ZSTD(1)),
    `driver_session` UInt64 CODEC(ZSTD(1)),
    `absence_set` UInt64 CODEC(ZSTD(1)),
    `info_set` UInt64 CODEC(ZSTD(1)),
    `known_after` Int64 CODEC(ZSTD(1)),
    `gpu_utilization_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_temperature_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_limit_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_energy_joules_total` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_performance_state` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_errors_total` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_errors_total` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_lifetime_errors_total` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_lifetime_errors_total` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_recovery_action` Nullable(Enum8('none' = 0, 'gpu_reset' = 1, 'node_reboot' = 2, 'drain_p2p' = 3, 'drain_and_reset' = 4, 'recover_imex' = 5, 'bus_reset' = 6, 'system_reboot' = 7)) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_replays_total` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_compute_processes` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_state` Nullable(Enum8('ok' = 0, 'lost' = 1, 'reset_required' = 2, 'hung' = 3, 'unreadable' = 4, 'error' = 5)) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `host_load_1m` Nullable(Float64) CODEC(ZSTD(1)),
    `host_memory_total_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_available_bytes` Nullable(UInt64) CODEC(ZSTD(1)),
    `tail_int_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_int_values` Array(UInt64) CODEC(ZSTD(1)),
    `tail_float_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_float_values` Array(Float64) CODEC(ZSTD(1)),
    INDEX `received_at` `received_at` TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree()
PARTITION BY toDate(measured_at)
ORDER BY (subject, measured_at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS latest (
    `cluster` LowCardinality(String) CODEC(LZ4),
    `machine` LowCardinality(String) CODEC(LZ4),
    `view` String CODEC(LZ4),
    `reader` LowCardinality(String) CODEC(LZ4),
    `lane` LowCardinality(String) CODEC(LZ4),
    `provenance` LowCardinality(String) CODEC(LZ4),
    `measured_at` DateTime64(9, 'UTC') CODEC(LZ4),
    `received_at` DateTime64(9, 'UTC') CODEC(LZ4),
    `driver_session` UInt64 CODEC(LZ4),
    `absence_set` UInt64 CODEC(LZ4),
    `info_set` UInt64 CODEC(LZ4),
    `known_at` DateTime64(9, 'UTC') CODEC(LZ4),
    `has_totals` Bool CODEC(LZ4),
    `int_ids` Array(UInt16) CODEC(LZ4),
    `int_values` Array(UInt64) CODEC(LZ4),
    `float_ids` Array(UInt16) CODEC(LZ4),
    `float_values` Array(Float64) CODEC(LZ4)
) ENGINE = ReplacingMergeTree(known_at)
ORDER BY (cluster, machine, view, reader, lane)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS latest_position (
    `name` String CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(received_at)
ORDER BY (name)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS dim_samples (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `measured_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `epoch` LowCardinality(String) CODEC(ZSTD(1)),
    `seq` UInt64 CODEC(Delta, ZSTD(1)),
    `driver_session` UInt64 CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` Array(String) CODEC(ZSTD(1)),
    `int_value` Nullable(UInt64) CODEC(ZSTD(1)),
    `float_value` Nullable(Float64) CODEC(ZSTD(1)),
    `absence_set` UInt64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
PARTITION BY toDate(measured_at)
ORDER BY (subject, measured_at, metric, labels)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS subjects (
    `number` UInt32 CODEC(ZSTD(1)),
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `lane` LowCardinality(String) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(number)
ORDER BY (cluster, machine, view, reader, lane)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS absence_sets (
    `id` UInt64 CODEC(ZSTD(1)),
    `metrics` Array(String) CODEC(ZSTD(1)),
    `reasons` Array(String) CODEC(ZSTD(1)),
    `details` Array(String) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
ORDER BY (id)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS info (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `lane` LowCardinality(String) CODEC(ZSTD(1)),
    `info_set` UInt64 CODEC(ZSTD(1)),
    `since` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `before` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `text` String CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
ORDER BY (cluster, machine, view, reader, lane, info_set, since, metric)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS views (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `kind` LowCardinality(String) CODEC(ZSTD(1)),
    `side` LowCardinality(String) CODEC(ZSTD(1)),
    `uuid` Nullable(String) CODEC(ZSTD(1)),
    `pci_address` Nullable(String) CODEC(ZSTD(1)),
    `instance` Nullable(String) CODEC(ZSTD(1)),
    `parent` Nullable(String) CODEC(ZSTD(1)),
    `index` Nullable(Int64) CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, machine, view, reader)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS reader_status (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `lane` LowCardinality(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `interval_seconds` Float64 CODEC(ZSTD(1)),
    `last_attempt` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `last_success` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `duration_seconds` Float64 CODEC(ZSTD(1)),
    `failures` UInt64 CODEC(ZSTD(1)),
    `error_class` String CODEC(ZSTD(1)),
    `last_error` String CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, machine, reader, lane)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS events (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `kind` LowCardinality(String) CODEC(ZSTD(1)),
    `code` Int64 CODEC(ZSTD(1)),
    `attribute_names` Array(String) CODEC(ZSTD(1)),
    `attribute_values` Array(String) CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
) ENGINE = ReplacingMergeTree()
PARTITION BY toYYYYMM(at)
ORDER BY (cluster, machine, at, view, kind, code, attribute_names, attribute_values)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS holdings (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `holder_kind` String CODEC(ZSTD(1)),
    `holder_id` String CODEC(ZSTD(1)),
    `holder_name` String CODEC(ZSTD(1)),
    `holder_namespace` String CODEC(ZSTD(1)),
    `holder_user` String CODEC(ZSTD(1)),
    `holder_account` String CODEC(ZSTD(1)),
    `holder_queue` String CODEC(ZSTD(1)),
    `holder_qos` String CODEC(ZSTD(1)),
    `holder_array_job` String CODEC(ZSTD(1)),
    `holder_array_task` String CODEC(ZSTD(1)),
    `holder_slurm_cluster` String CODEC(ZSTD(1)),
    `holder_owner_kinds` Array(String) CODEC(ZSTD(1)),
    `holder_owner_names` Array(String) CODEC(ZSTD(1)),
    `holder_owner_uids` Array(String) CODEC(ZSTD(1)),
    `holder_owner_api_versions` Array(String) CODEC(ZSTD(1)),
    `holder_label_names` Array(String) CODEC(ZSTD(1)),
    `holder_label_values` Array(String) CODEC(ZSTD(1)),
    `holder_annotation_names` Array(String) CODEC(ZSTD(1)),
    `holder_annotation_values` Array(String) CODEC(ZSTD(1)),
    `holder_nodes` UInt64 CODEC(ZSTD(1)),
    `holder_gpus` UInt64 CODEC(ZSTD(1)),
    `parent_kind` String CODEC(ZSTD(1)),
    `parent_id` String CODEC(ZSTD(1)),
    `parent_name` String CODEC(ZSTD(1)),
    `parent_namespace` String CODEC(ZSTD(1)),
    `container` String CODEC(ZSTD(1)),
    `container_id` String CODEC(ZSTD(1)),
    `steps` Array(String) CODEC(ZSTD(1)),
    `share` LowCardinality(String) CODEC(ZSTD(1)),
    `replicas` UInt64 CODEC(ZSTD(1)),
    `total_replicas` UInt64 CODEC(ZSTD(1)),
    `claim` String CODEC(ZSTD(1)),
    `since` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `until` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `methods` Array(String) CODEC(ZSTD(1)),
    `verdict` LowCardinality(String) CODEC(ZSTD(1)),
    `certain_verdict` LowCardinality(String) CODEC(ZSTD(1)),
    `certain_until` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    INDEX `holder_id` `holder_id` TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX `holder_name` `holder_name` TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX `holder_namespace` `holder_namespace` TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX `holder_user` `holder_user` TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX `holder_array_job` `holder_array_job` TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX `holder_owner_names` `holder_owner_names` TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, machine, view, holder_kind, holder_id, container, since)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS holder_states (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `sender` LowCardinality(String) CODEC(ZSTD(1)),
    `epoch` LowCardinality(String) CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `sent_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `views` Array(String) CODEC(ZSTD(1)),
    `states` Array(String) CODEC(ZSTD(1)),
    `details` Array(String) CODEC(ZSTD(1)),
    `unresolved_sources` Array(String) CODEC(ZSTD(1)),
    `unresolved_names` Array(UInt64) CODEC(ZSTD(1)),
    `unresolved_examples` Array(Array(String)) CODEC(ZSTD(1)),
    `failed_sources` Array(String) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, machine, sender, epoch)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS inventory (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `inventory_set` UInt64 CODEC(ZSTD(1)),
    `addresses` Array(String) CODEC(ZSTD(1)),
    `vendors` Array(UInt32) CODEC(ZSTD(1)),
    `devices` Array(UInt32) CODEC(ZSTD(1)),
    `class_codes` Array(UInt32) CODEC(ZSTD(1)),
    `drivers` Array(Nullable(String)) CODEC(ZSTD(1)),
    `numa_nodes` Array(Nullable(Int64)) CODEC(ZSTD(1)),
    `physical_functions` Array(Nullable(String)) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
ORDER BY (cluster, machine, reported_at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS processes (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `view` String CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `measured_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `total` UInt64 CODEC(ZSTD(1)),
    `pids` Array(UInt32) CODEC(ZSTD(1)),
    `start_times` Array(Nullable(UInt64)) CODEC(ZSTD(1)),
    `kinds` Array(String) CODEC(ZSTD(1)),
    `names` Array(String) CODEC(ZSTD(1)),
    `memory_bytes` Array(Nullable(UInt64)) CODEC(ZSTD(1)),
    `sm_utilization_ratio` Array(Nullable(Float64)) CODEC(ZSTD(1)),
    `memory_activity_ratio` Array(Nullable(Float64)) CODEC(ZSTD(1)),
    `encoder_utilization_ratio` Array(Nullable(Float64)) CODEC(ZSTD(1)),
    `decoder_utilization_ratio` Array(Nullable(Float64)) CODEC(ZSTD(1)),
    `absence_sets` Array(UInt64) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
PARTITION BY toDate(measured_at)
ORDER BY (cluster, machine, view, reader, measured_at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS declared (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `machine` LowCardinality(String) CODEC(ZSTD(1)),
    `reader` LowCardinality(String) CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `resource` String CODEC(ZSTD(1)),
    `value` Nullable(UInt64) CODEC(ZSTD(1)),
    `measured_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
) ENGINE = ReplacingMergeTree(measured_at)
ORDER BY (cluster, machine, reader, metric, resource)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS cluster_objects (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `kind` LowCardinality(String) CODEC(ZSTD(1)),
    `uid` String CODEC(ZSTD(1)),
    `sender` LowCardinality(String) CODEC(ZSTD(1)),
    `is_end` UInt8 CODEC(ZSTD(1)),
    `namespace` String CODEC(ZSTD(1)),
    `name` String CODEC(ZSTD(1)),
    `node` String CODEC(ZSTD(1)),
    `queue` String CODEC(ZSTD(1)),
    `names` Array(String) CODEC(ZSTD(1)),
    `content` String CODEC(ZSTD(1)),
    `observed_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    `ended_at` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    INDEX `queue` `queue` TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, kind, uid, sender, is_end)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS collectors (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `sender` LowCardinality(String) CODEC(ZSTD(1)),
    `system_uid` String CODEC(ZSTD(1)),
    `server_version` String CODEC(ZSTD(1)),
    `copies` String CODEC(ZSTD(1)),
    `observed_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `reported_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `received_at` DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
) ENGINE = ReplacingMergeTree(reported_at)
ORDER BY (cluster, sender)
SETTINGS index_granularity = 512, min_bytes_for_wide_part = 1099511627776, min_parts_to_merge_at_once = 8, merge_selector_base = 10, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS finding_transitions (
    `cluster` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `id` String CODEC(ZSTD(1)),
    `scope` String CODEC(ZSTD(1)),
    `kind` LowCardinality(String) CODEC(ZSTD(1)),
    `reason` LowCardinality(String) CODEC(ZSTD(1)),
    `rule` LowCardinality(String) CODEC(ZSTD(1)),
    `severity` LowCardinality(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `hidden_by` LowCardinality(String) CODEC(ZSTD(1)),
    `evidence_names` Array(String) CODEC(ZSTD(1)),
    `evidence_values` Array(String) CODEC(ZSTD(1)),
    `first` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `last` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `opened_at` DateTime64(9, 'UTC') CODEC(ZSTD(1)),
    `closed_at` Nullable(DateTime64(9, 'UTC')) CODEC(ZSTD(1)),
    `openings` UInt64 CODEC(ZSTD(1)),
    `number` UInt64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree()
PARTITION BY toYYYYMM(at)
ORDER BY (cluster, at, id, kind)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS windows_1m (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `samples` UInt32 CODEC(ZSTD(1)),
    `gpu_utilization_ratio_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_temperature_celsius_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_count` UInt32 CODEC(ZSTD(1)),
    `gpu_power_watts_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_watts_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_watts_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_watts_count` UInt32 CODEC(ZSTD(1)),
    `gpu_power_limit_watts_min` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_max` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_count` UInt32 CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_count` UInt32 CODEC(ZSTD(1)),
    `gpu_performance_state_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_performance_state_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_performance_state_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_performance_state_count` UInt32 CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_count` UInt32 CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_count` UInt32 CODEC(ZSTD(1)),
    `gpu_row_remap_pending_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_count` UInt32 CODEC(ZSTD(1)),
    `gpu_row_remap_failed_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_count` UInt32 CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_count` UInt32 CODEC(ZSTD(1)),
    `gpu_pcie_link_width_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_count` UInt32 CODEC(ZSTD(1)),
    `gpu_compute_processes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_compute_processes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_compute_processes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_compute_processes_count` UInt32 CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_min` Nullable(Float32) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_max` Nullable(Float32) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `host_load_1m_min` Nullable(Float32) CODEC(ZSTD(1)),
    `host_load_1m_max` Nullable(Float32) CODEC(ZSTD(1)),
    `host_load_1m_avg` Nullable(Float32) CODEC(ZSTD(1)),
    `host_load_1m_count` UInt32 CODEC(ZSTD(1)),
    `host_memory_total_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_count` UInt32 CODEC(ZSTD(1)),
    `host_memory_available_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_energy_joules_total_last` Nullable(Float64) CODEC(Delta, ZSTD(1)),
    `gpu_energy_joules_total_increase` Nullable(Float32) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_corrected_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_uncorrected_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_lifetime_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_corrected_lifetime_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_lifetime_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_uncorrected_lifetime_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_replays_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_pcie_replays_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_recovery_action_last` Nullable(UInt8) CODEC(ZSTD(1)),
    `gpu_recovery_action_last_at` Nullable(DateTime('UTC')) CODEC(Delta, ZSTD(1)),
    `gpu_state_last` Nullable(UInt8) CODEC(ZSTD(1)),
    `gpu_state_last_at` Nullable(DateTime('UTC')) CODEC(Delta, ZSTD(1)),
    `tail_gauge_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_gauge_min` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_max` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_avg` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_count` Array(UInt32) CODEC(ZSTD(1)),
    `tail_counter_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_counter_last` Array(UInt64) CODEC(ZSTD(1)),
    `tail_counter_increase` Array(UInt64) CODEC(ZSTD(1)),
    `tail_state_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_state_last` Array(UInt8) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(at)
ORDER BY (subject, provenance, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS windows_1h (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `samples` UInt32 CODEC(ZSTD(1)),
    `gpu_utilization_ratio_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_activity_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_encoder_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_decoder_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_total_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_used_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_free_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_reserved_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_temperature_celsius_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_temperature_celsius_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_temperature_celsius_count` UInt32 CODEC(ZSTD(1)),
    `gpu_power_watts_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_watts_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_watts_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_watts_count` UInt32 CODEC(ZSTD(1)),
    `gpu_power_limit_watts_min` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_max` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_power_limit_watts_count` UInt32 CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_graphics_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_sm_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_memory_clock_hertz_count` UInt32 CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_clock_event_reasons_mask_count` UInt32 CODEC(ZSTD(1)),
    `gpu_performance_state_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_performance_state_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_performance_state_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_performance_state_count` UInt32 CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_correctable_count` UInt32 CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_remapped_rows_uncorrectable_count` UInt32 CODEC(ZSTD(1)),
    `gpu_row_remap_pending_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_row_remap_pending_count` UInt32 CODEC(ZSTD(1)),
    `gpu_row_remap_failed_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_row_remap_failed_count` UInt32 CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_pcie_link_generation_count` UInt32 CODEC(ZSTD(1)),
    `gpu_pcie_link_width_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_pcie_link_width_count` UInt32 CODEC(ZSTD(1)),
    `gpu_compute_processes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_compute_processes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_compute_processes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_compute_processes_count` UInt32 CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_min` Nullable(Float64) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_max` Nullable(Float64) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_cpu_utilization_ratio_count` UInt32 CODEC(ZSTD(1)),
    `host_load_1m_min` Nullable(Float64) CODEC(ZSTD(1)),
    `host_load_1m_max` Nullable(Float64) CODEC(ZSTD(1)),
    `host_load_1m_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_load_1m_count` UInt32 CODEC(ZSTD(1)),
    `host_memory_total_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_memory_total_bytes_count` UInt32 CODEC(ZSTD(1)),
    `host_memory_available_bytes_min` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_max` Nullable(UInt64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_avg` Nullable(Float64) CODEC(ZSTD(1)),
    `host_memory_available_bytes_count` UInt32 CODEC(ZSTD(1)),
    `gpu_energy_joules_total_last` Nullable(Float64) CODEC(Delta, ZSTD(1)),
    `gpu_energy_joules_total_increase` Nullable(Float64) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_corrected_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_uncorrected_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_corrected_lifetime_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_corrected_lifetime_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_ecc_uncorrected_lifetime_errors_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_ecc_uncorrected_lifetime_errors_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_pcie_replays_total_last` Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    `gpu_pcie_replays_total_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `gpu_recovery_action_last` Nullable(UInt8) CODEC(ZSTD(1)),
    `gpu_recovery_action_last_at` Nullable(DateTime('UTC')) CODEC(Delta, ZSTD(1)),
    `gpu_state_last` Nullable(UInt8) CODEC(ZSTD(1)),
    `gpu_state_last_at` Nullable(DateTime('UTC')) CODEC(Delta, ZSTD(1)),
    `tail_gauge_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_gauge_min` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_max` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_avg` Array(Float64) CODEC(ZSTD(1)),
    `tail_gauge_count` Array(UInt32) CODEC(ZSTD(1)),
    `tail_counter_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_counter_last` Array(UInt64) CODEC(ZSTD(1)),
    `tail_counter_increase` Array(UInt64) CODEC(ZSTD(1)),
    `tail_state_ids` Array(UInt16) CODEC(ZSTD(1)),
    `tail_state_last` Array(UInt8) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(at)
ORDER BY (subject, provenance, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS dim_windows_1m (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` Array(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `count` UInt32 CODEC(ZSTD(1)),
    `min` Nullable(Float64) CODEC(ZSTD(1)),
    `max` Nullable(Float64) CODEC(ZSTD(1)),
    `avg` Nullable(Float64) CODEC(ZSTD(1)),
    `int_last` Nullable(UInt64) CODEC(ZSTD(1)),
    `int_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `float_last` Nullable(Float64) CODEC(ZSTD(1)),
    `float_increase` Nullable(Float64) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(at)
ORDER BY (subject, provenance, metric, labels, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS dim_windows_1h (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` Array(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `count` UInt32 CODEC(ZSTD(1)),
    `min` Nullable(Float64) CODEC(ZSTD(1)),
    `max` Nullable(Float64) CODEC(ZSTD(1)),
    `avg` Nullable(Float64) CODEC(ZSTD(1)),
    `int_last` Nullable(UInt64) CODEC(ZSTD(1)),
    `int_increase` Nullable(UInt64) CODEC(ZSTD(1)),
    `float_last` Nullable(Float64) CODEC(ZSTD(1)),
    `float_increase` Nullable(Float64) CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(at)
ORDER BY (subject, provenance, metric, labels, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS state_windows_1m (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` Array(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `seconds` Float64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(at)
ORDER BY (subject, provenance, metric, labels, state, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS state_windows_1h (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `metric` LowCardinality(String) CODEC(ZSTD(1)),
    `labels` Array(String) CODEC(ZSTD(1)),
    `state` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `seconds` Float64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(at)
ORDER BY (subject, provenance, metric, labels, state, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS usage_1h (
    `subject` UInt32 CODEC(Delta, ZSTD(1)),
    `provenance` LowCardinality(String) CODEC(ZSTD(1)),
    `at` DateTime('UTC') CODEC(Delta, ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `used_seconds` Float64 CODEC(ZSTD(1)),
    `idle_seconds` Float64 CODEC(ZSTD(1)),
    `power_joules` Float64 CODEC(ZSTD(1)),
    `power_seconds` Float64 CODEC(ZSTD(1)),
    `energy_joules` Float64 CODEC(ZSTD(1)),
    `energy_seconds` Float64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(at)
ORDER BY (subject, provenance, at)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS touched_hours (
    `hour` DateTime('UTC') CODEC(ZSTD(1)),
    `marked_at` UInt64 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(marked_at)
ORDER BY (hour)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS rolled_hours (
    `hour` DateTime('UTC') CODEC(ZSTD(1)),
    `version` UInt64 CODEC(ZSTD(1)),
    `seen` UInt64 CODEC(ZSTD(1)),
    `without_minutes` UInt8 CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
ORDER BY (hour)
SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 67108864, non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
