"""Augmentation in one Triton kernel: a program computes one channel of one image, from its bytes to the finished numbers.

The steps are those of :mod:`regard.data._augmented`, in the same order and with the same rounding. A program computes only
the operation that its image drew, while tensors make torch compute every operation for every image.
"""

import triton
import triton.language as tl

# Columns of the tables of draws, one row for each sample of the set (see regard.data._fused).
ROW_SHIFT, COLUMN_SHIFT, MIRROR = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
OPERATION, BITS, THRESHOLD = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
CORNER, LOW, HIGH, PARTNER = tl.constexpr(6), tl.constexpr(8), tl.constexpr(10), tl.constexpr(12)
COSINE, X_OF_Y, Y_OF_X = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
X_START, Y_START, FACTOR = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
WEIGHT, BLEND = tl.constexpr(6), tl.constexpr(7)


@triton.jit
def cropped(plane, row, column, inside, whole, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ZEROS: tl.constexpr):
    """The bytes at (row, column) after crop and flip, 0 where not ``inside``; as :func:`regard.data.move`."""
    row += tl.load(whole + ROW_SHIFT)
    column += tl.load(whole + COLUMN_SHIFT)
    if ZEROS:
        inside = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    else:
        row = (HEIGHT - 1) - tl.abs((HEIGHT - 1) - tl.abs(row))
        column = (WIDTH - 1) - tl.abs((WIDTH - 1) - tl.abs(column))
    column = tl.where(tl.load(whole + MIRROR) != 0, (WIDTH - 1) - column, column)
    return tl.load(plane + row * WIDTH + column, mask=inside, other=0).to(tl.int32)


@triton.jit
def blended(values, base, factor):
    """Away from the base, or towards it."""
    mixed = base + factor * (values.to(tl.float32) - base)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)


@triton.jit
def gray(
    image, row, column, real, whole,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    red = cropped(image, row, column, real, whole, HEIGHT, WIDTH, ZEROS)
    if CHANNELS == 1:
        return red
    green = cropped(image + HEIGHT * WIDTH, row, column, real, whole, HEIGHT, WIDTH, ZEROS)
    blue = cropped(image + 2 * HEIGHT * WIDTH, row, column, real, whole, HEIGHT, WIDTH, ZEROS)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16  # Pillow's weights


@triton.jit
def smoothed(
    plane, values, row, column, real, whole, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ZEROS: tl.constexpr
):  # fmt: skip
    """The mean of the 3×3 neighborhood with five times the weight in the middle; pixels at the border stay."""
    total = 4 * values
    within = real & (row > 0) & (row < HEIGHT - 1) & (column > 0) & (column < WIDTH - 1)
    for neighbor in range(9):
        total += cropped(plane, row + neighbor // 3 - 1, column + neighbor % 3 - 1, within, whole, HEIGHT, WIDTH, ZEROS)
    return tl.where(within, (2 * total + 13) // 26, values)  # total / 13, rounded; there are no ties


@triton.jit
def equalized(values, real, PIXELS: tl.constexpr):
    """Map a value to the share of the channel's pixels below it. The count leaves out the brightest ones."""
    brightest = tl.sum((real & (values == tl.max(values))).to(tl.int32))  # places that do not exist hold 0
    step = (PIXELS - brightest) // 255
    counts = tl.histogram(tl.where(real, values, 255), 256)  # no pixel is above those at 255
    below = tl.gather(tl.cumsum(counts) - counts, values, 0)
    return tl.where(step > 0, tl.minimum((step // 2 + below) // tl.maximum(step, 1), 255), values)


@triton.jit
def stretched(values, real):
    """From the smallest value of the channel to the largest: 0 to 255."""
    low, high = tl.min(tl.where(real, values, 255)).to(tl.float32), tl.max(values).to(tl.float32)
    scale = tl.div_rn(1.0, tl.maximum(high - low, 1.0)) * 255.0
    found = (values.to(tl.float32) - low) * scale * 1.000001
    return tl.where(high > low, tl.minimum(tl.maximum(found, 0.0), 255.0).to(tl.int32), values)


@triton.jit
def augmented(
    images, whole, parts, sample, channel, scale, offset,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ZEROS: tl.constexpr, TRIVIAL: tl.constexpr, CUTOUT: tl.constexpr,
):  # fmt: skip
    """One channel of a sample: moved, mirrored, changed by an operation, normalized and cut out."""
    pixel = tl.arange(0, BLOCK)
    row, column, real = pixel // WIDTH, pixel % WIDTH, pixel < HEIGHT * WIDTH
    image = images + sample * (CHANNELS * HEIGHT * WIDTH)
    plane = image + channel * (HEIGHT * WIDTH)
    if TRIVIAL:
        operation = tl.load(whole + OPERATION)
        x, y, cosine = column.to(tl.float32) + 0.5, row.to(tl.float32) + 0.5, tl.load(parts + COSINE)
        left = tl.floor(cosine * x + tl.load(parts + X_OF_Y) * y + tl.load(parts + X_START)).to(tl.int32)
        above = tl.floor(tl.load(parts + Y_OF_X) * x + cosine * y + tl.load(parts + Y_START)).to(tl.int32)
        inside = real & (left >= 0) & (left < WIDTH) & (above >= 0) & (above < HEIGHT)
        values = cropped(plane, above, left, inside, whole, HEIGHT, WIDTH, ZEROS)
        factor = tl.load(parts + FACTOR)
        # The numbers are indices into OPERATIONS of regard.data._trivial_augment.
        if operation == 6:
            values = blended(values, 0.0, factor)
        elif operation == 7:
            base = gray(image, row, column, real, whole, CHANNELS, HEIGHT, WIDTH, ZEROS)
            values = blended(values, base.to(tl.float32), factor)
        elif operation == 8:
            base = gray(image, row, column, real, whole, CHANNELS, HEIGHT, WIDTH, ZEROS)
            mean = tl.div_rn(tl.sum(base).to(tl.float32), HEIGHT * WIDTH * 1.0)
            values = blended(values, tl.floor(mean + 0.5), factor)
        elif operation == 9:
            base = smoothed(plane, values, row, column, real, whole, HEIGHT, WIDTH, ZEROS)
            values = blended(values, base.to(tl.float32), factor)
        elif operation == 10:
            values = values & tl.load(whole + BITS)
        elif operation == 11:
            values = tl.where(values < tl.load(whole + THRESHOLD), values, 255 - values)
        elif operation == 12:
            values = stretched(values, real)
        elif operation == 13:
            values = equalized(values, real, HEIGHT * WIDTH)
    else:
        values = cropped(plane, row, column, real, whole, HEIGHT, WIDTH, ZEROS)
    numbers = tl.fma(values.to(tl.float32), tl.load(scale + channel), tl.load(offset + channel))
    if CUTOUT:
        top, side = tl.load(whole + CORNER), tl.load(whole + CORNER + 1)
        cut = (row >= top) & (row < top + CUTOUT) & (column >= side) & (column < side + CUTOUT)
        numbers = tl.where(cut, 0.0, numbers)
    return numbers


@triton.jit
def image_batch(
    images, labels, index, whole, parts, scale, offset, out, out_labels,
    classes, out_channel, out_pixel,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CLASSES: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr, TRIVIAL: tl.constexpr, CUTOUT: tl.constexpr, CUTMIX: tl.constexpr, MIXUP: tl.constexpr,
):  # fmt: skip
    """Program (i, c) computes channel c of the sample ``index[i]``, and program (i, 0) also its label."""
    place, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sample = tl.load(index + place)
    own, own_parts = whole + sample * COLUMNS, parts + sample * PARTS
    label = tl.load(labels + sample)
    numbers = augmented(
        images, own, own_parts, sample, channel, scale, offset,
        CHANNELS, HEIGHT, WIDTH, BLOCK, ZEROS, TRIVIAL, CUTOUT,
    )  # fmt: skip
    pixel = tl.arange(0, BLOCK)
    if CUTMIX or MIXUP:
        partner = tl.load(own + PARTNER).to(tl.int64)
        others = augmented(
            images, whole + partner * COLUMNS, parts + partner * PARTS, partner, channel, scale, offset,
            CHANNELS, HEIGHT, WIDTH, BLOCK, ZEROS, TRIVIAL, CUTOUT,
        )  # fmt: skip
        if CUTMIX:
            row, column = pixel // WIDTH, pixel % WIDTH
            in_rows = (row >= tl.load(own + LOW)) & (row < tl.load(own + HIGH))
            in_columns = (column >= tl.load(own + LOW + 1)) & (column < tl.load(own + HIGH + 1))
            numbers = tl.where(in_rows & in_columns, others, numbers)
        if MIXUP:  # torch's lerp
            blend, way = tl.load(own_parts + BLEND), numbers - others
            near, far = tl.fma(way, blend, others), tl.fma(-way, 1.0 - blend, numbers)
            numbers = tl.where(blend < 0.5, near, far)
        if channel == 0:
            weight, other = tl.load(own_parts + WEIGHT), tl.load(labels + partner)
            c = tl.arange(0, CLASSES)
            weights = tl.where(c == label, weight, 0.0) + tl.where(c == other, 1.0 - weight, 0.0)
            tl.store(out_labels + place * classes + c, weights, mask=c < classes)
    elif channel == 0:
        tl.store(out_labels + place, label)
    target = out + place * (CHANNELS * HEIGHT * WIDTH) + channel * out_channel + pixel * out_pixel
    tl.store(target, numbers.to(out.dtype.element_ty), mask=pixel < HEIGHT * WIDTH)
