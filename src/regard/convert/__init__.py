"""Convolution ⇄ attention in closed form: one layer or a whole network, with certified bounds."""

from regard.convert._folder import load_converted as load_converted
from regard.convert._folder import save_converted as save_converted
from regard.convert._from_conv import ConvolutionalAttention as ConvolutionalAttention
from regard.convert._from_conv import conv_to_attention as conv_to_attention
from regard.convert._network import convert_network as convert_network
from regard.convert._report import ConversionReport as ConversionReport
from regard.convert._report import LayerReport as LayerReport
from regard.convert._to_conv import GaussianConvolution as GaussianConvolution
from regard.convert._to_conv import attention_to_conv as attention_to_conv
from regard.convert._trainable import TrainableConvolutionalAttention as TrainableConvolutionalAttention
