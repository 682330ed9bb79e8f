"""Parsers of `nvidia-smi` output: CSV, XML, `-q` text, `-L`, help lists. Pure; values are not converted here."""

from gpufleet.codecs.nvidia_smi.capture import Section, parse_capture
from gpufleet.codecs.nvidia_smi.csv import Table, parse_csv, split_rounds
from gpufleet.codecs.nvidia_smi.failure import Failure, classify_failure
from gpufleet.codecs.nvidia_smi.listing import ListedGpu, ListedMig, parse_help, parse_listing
from gpufleet.codecs.nvidia_smi.records import DeviceRecord, Log
from gpufleet.codecs.nvidia_smi.text import parse_text, split_text_rounds
from gpufleet.codecs.nvidia_smi.xml import parse_xml, split_documents

__all__ = [
    "DeviceRecord",
    "Failure",
    "ListedGpu",
    "ListedMig",
    "Log",
    "Section",
    "Table",
    "classify_failure",
    "parse_capture",
    "parse_csv",
    "parse_help",
    "parse_listing",
    "parse_text",
    "parse_xml",
    "split_documents",
    "split_rounds",
    "split_text_rounds",
]
